// Package learned keeps what jobs have taught about graphs in files, so that a later dispatcher starts with it. These are
// profiles, decided and refused orders, results of searches for workers, and histories.
//
// format.go writes and reads one file, dir.go keeps a directory with a file for each graph. Several processes may use one
// directory. A rename replaces a file, after a merge with what the file has by then. The later rename wins, and loses
// nothing that it has found. The directory is bounded: the files that were written first leave first.
//
// Nothing here may stop a dispatcher. A file that cannot be read counts as absent, and one that cannot be written is left out.
// docs/formats/learned.md has the format.
package learned
