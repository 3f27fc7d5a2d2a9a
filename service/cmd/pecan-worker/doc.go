// Command pecan-worker runs streams of datasets with TensorFlow and pushes their elements to trainers.
//
// Files: main.go starts it, options.go has its flags. Package worker is the program.
package main
