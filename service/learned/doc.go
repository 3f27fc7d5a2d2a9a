// Package learned keeps what was learned from jobs about graphs in files, so that a later dispatcher starts with it. These are
// profiles, decided and refused orders, results of searches for workers, and histories.
//
// format.go writes and reads one file, and dir.go keeps a directory with one file for each graph. Several processes may use
// one directory. A writer reads the present file, merges it with what its own jobs gave, and renames the result into place. If
// two processes do so at once, the later rename wins. The directory is bounded: it drops the oldest files first.
//
// Do not let a file stop a dispatcher: one that cannot be read counts as absent, and one that cannot be written is left out.
// docs/formats/learned.md has the format.
package learned
