// Command ordergraph analyses which steps of a serialised dataset may change places, and writes the dataset in another
// order. Tests run both orders.
//
//	ordergraph pairs DATASET.pb                    print the pairs of steps that may change places; each step changes one component
//	ordergraph steps DATASET.pb                    print the names of the steps, from the source on
//	ordergraph barriers DATASET.pb                 print for each step why it is a barrier, or an empty string
//	ordergraph reorder DATASET.pb OUT.pb NAME...   write the dataset with its steps in this order
//	ordergraph streams DATASET.pb OUT NAME...      write its serial streams in this order to OUT.s<stream>.pb, for benchmarks
//	ordergraph propose DIRECTORY                   propose orders for each NAME.pb in the directory
//
// main.go has the commands, and propose.go has the last one.
package main
