// Package journal reads the work directory of a dispatcher that is not running. It implements "pecanctl store": check reads
// the whole store and replays its records, inspect prints them.
//
// journal.go selects the command. check.go and inspect.go implement one command each.
//
// Do not change anything in the directory: a damaged store is evidence.
package journal
