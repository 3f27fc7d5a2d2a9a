// Package cli has the common parts of Pecan's commands: flags and --help, signals, logging, and listening with the line that
// announces the address. A command can also end together with its parent process.
//
// Files: cli.go runs a command, listen.go opens its address, log.go its logger, which does not wait for a reader,
// stderr.go lets native code not wait for one either, and parent.go watches its parent.
//
// Only this package and main functions end the process. The package must not know what a command does.
package cli
