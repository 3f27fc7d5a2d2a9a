// Command pecan-worker runs streams of datasets with TensorFlow and pushes their elements to trainers.
//
// main.go starts it, and options.go has its flags. Package worker is the program.
//
// Do not decide anything about streams here: the command reads and checks flags.
package main
