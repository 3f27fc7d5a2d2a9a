// Package cli has the common parts of Pecan's commands: flags and --help, signals, logging, and listening with the line that
// announces the address. A command can also end together with its parent process.
//
// cli.go runs a command. listen.go opens its address. log.go opens its logger, which does not wait for a reader. stderr.go
// keeps native code from waiting for a reader. parent.go watches its parent.
//
// Only this package and main functions end the process. The package must not know what a command does.
package cli
