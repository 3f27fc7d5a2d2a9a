// Package store keeps what must outlive the dispatcher: a journal of records with a snapshot before it, and graphs as
// blobs. It knows nothing of what the bytes mean.
//
// The durable form is a pebble database in one directory, owned by one process at a time:
//
//	format                      the format version, written first and checked at every opening
//	marked                      there is a PECAN-MARK beside the database
//	snapshot                    header of the snapshot: records it stands for, chunks, bytes, checksum
//	snapshot/<chunk>            the snapshot itself
//	record/<number>             records after the snapshot, numbered without gaps
//	graph/<fingerprint>         header of a graph: chunks, bytes, checksum
//	graph/<fingerprint>/<chunk> the graph itself
//
// What Append, Compact and PutGraph wrote is on disk when they return. A crash at any point leaves a prefix of the records
// and either the old or the new snapshot; an incomplete graph has no header and counts as absent. A torn last write that
// nobody was told of is cut off; damage anywhere else is refused (ErrDamaged) and never repaired silently: the file
// PECAN-MARK beside the database says how many records were acknowledged, and an opening that finds fewer changes nothing. A failed write or fsync makes
// the store unusable for good: every later call gives ErrFailed, because after a failed fsync nobody knows what is on disk. A disk that is nearly
// full (Options.Reserve) only refuses what would be begun (ErrFull).
package store
