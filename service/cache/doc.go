// Package cache keeps the elements of streams in files: segments, one for each stream. What is in them and which of them belong
// together is known to those who write and read; docs/formats/cache.md has the bytes, docs/design/0008-cache.md the reasons.
//
// A segment is written under a temporary name, synced, renamed, and its directory synced: under its last name it is whole. Reading
// checks every byte against checksums that are not in the file, or hang on one that is not. What does not fit is an error that Is
// ErrSpoilt, never elements.
//
// A file system is handed in, so that tests can let it fail and crash at every call.
package cache
