// Package graphtest reads the graphs of testdata and looks into graphs, for the tests of service/graph and its packages.
//
// graphtest.go works on bytes and nodes, pipeline.go plans and writes streams. Only tests import it.
package graphtest
