// Package graphtest reads the graphs in testdata and inspects graphs, for the tests of service/graph and its
// packages.
//
// graphtest.go works on bytes and nodes. pipeline.go plans streams and writes their graphs.
//
// Do not import it outside of tests.
package graphtest
