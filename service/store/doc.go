// Package store keeps the durable state of the dispatcher: a journal of records after a snapshot, and graphs as blobs.
//
// The durable form is a pebble database in one directory, owned by one process at a time:
//
//	format                      the format version, written first and checked at every opening
//	marked                      the directory has a file PECAN-MARK
//	snapshot                    header of the snapshot: records that it replaces, bytes, chunks, checksum
//	snapshot/<chunk>            the snapshot itself
//	record/<number>             records after the snapshot, numbered without gaps
//	graph/<fingerprint>         header of a graph: bytes, chunks, checksum
//	graph/<fingerprint>/<chunk> the graph itself
//
// Append, Compact and PutGraph return when their data is on disk. A crash at any point leaves a prefix of the records,
// and either the old or the new snapshot. An incomplete graph has no header and counts as absent.
//
// Opening ignores a torn last write that was never acknowledged. Any other damage is ErrDamaged and is never repaired
// silently. The file PECAN-MARK in the directory has the number of acknowledged records; if fewer are readable, opening
// fails and changes nothing.
//
// After a failed write or fsync every later call returns ErrFailed, because the state of the disk is unknown. On a
// nearly full disk (Options.Reserve) a write returns ErrFull before it starts, and may be tried again.
//
// store.go has the journal and the snapshot, and blobs.go has the graphs. mark.go has the mark and the ownership of a
// directory. tail.go reads the end of pebble's log. reader.go gives pecanctl read-only access. memory.go has the store
// without a directory. disk.go has free space and the file system. failed.go has the failed state, and errors.go has the
// errors. pebblelog.go passes on pebble's messages. sync_mode.go says when a write returns.
//
// Do not interpret records here: service/dispatcher/core/durable does. Do not write except through Store.guard, which keeps
// the failed state.
package store
