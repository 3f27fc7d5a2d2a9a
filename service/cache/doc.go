// Package cache stores elements in files, called segments: one for each part of a source.
//
// The magic at the start of a file has the version. Give it a new number if a reader of the old version would misread a
// file. Readers refuse other versions, and their streams compute the elements again.
//
// Guarantees: a segment under its final name is complete. The writer writes it under a temporary name, syncs it, renames
// it and syncs the directory, so that a crash leaves no partial segment. A reader checks every byte against checksums.
// The caller also keeps the checksum of the footer and gives it to the reader, so that no other valid file can replace
// the segment. A mismatch returns errInvalid, and the reader returns no elements of that block.
//
// A reader reads blocks into memory of its caller, who may retain a block to use its chunks longer.
//
// dir.go has names, the budget and the directory. files.go has the file system, and direct.go reads around its page cache. format.go has the bytes, which writer.go
// writes and reader.go reads, into the blocks of memory.go. limit.go bounds the writing speed, and patience.go bounds the
// time for which a caller waits.
// docs/formats/cache.md describes the format, and docs/design/0008-cache.md gives the reasons.
//
// Do not interpret elements here, and do not decide which segments are read or written: service/worker/cachefill and the
// dispatcher do. Use files only through FileSystem, so that tests can make each operation fail or crash.
package cache
