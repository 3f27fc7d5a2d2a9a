// Command pecanctl shows the state of a Pecan service and the contents of a dispatcher's work directory, and scales workers.
//
// main.go has the flags, and run.go has the sub-commands. show.go has the tables of status. explain.go,
// explain_placement.go and explain_cache.go have the tables of explain. top.go redraws a terminal, and top_screen.go has
// its tables. grid.go lays out text in columns. Package journal reads work directories. These commands only read. scale.go
// changes the number of workers, profiles.go shows and changes what was learned from jobs, and cache.go shows and changes
// caches.
//
// The text of the tables has golden files in testdata. Do not compute here what a dispatcher's answer could say: --json and
// other programs show the same answer.
package main
