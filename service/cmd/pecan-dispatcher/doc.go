// Command pecan-dispatcher serves datasets, jobs and leases to trainers and workers.
//
// main.go starts it. options.go has its flags, and makes the dispatcher and its store. provider.go has the flags of the
// workers' provider, and opens the provider. decisions.go has the file of --decisions-log.
//
// The command reads and checks flags and connects parts. Do not decide anything about jobs or workers here.
package main
