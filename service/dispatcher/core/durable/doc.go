// Package durable holds the dispatcher's durable state: datasets, clients, jobs, epochs, streams, caches and orders.
//
// State is the sum of all records in the journal. Only Apply and Restore change it. Equal records give equal states, so a
// dispatcher that replays its journal continues exactly where the last one stopped. A record that does not fit the state
// is an error and changes nothing: the journal is damaged, or a decision was wrong.
//
// An epoch may have 65,536 streams, and few of them are open at once. It has an entry for each active stream. Such a
// stream has had a lease, and a worker, a reader or a closing stream still needs it. An epoch keeps sums, and two bits
// for each other stream. No lookup visits all streams.
//
// state.go has the state, and snapshot.go has its snapshot. lookup.go has what the core reads. questions.go answers questions
// about jobs. epoch.go has the streams of an epoch. Only change.go changes a stream; it also keeps sums and indexes.
//
// apply.go takes each record to its file. apply_job.go applies the records of jobs, and apply_epoch.go those of epochs.
// apply_stream.go applies leases and consumers, and apply_lists.go does the same for many streams. workers.go applies the
// numbers of workers. apply_cache.go and apply_cache_decision.go are for caches. apply_order.go, apply_placement.go and
// apply_learned.go apply orders, placements, and what other dispatchers have learned.
//
// learned.go has what was learned from jobs about graphs, and how long it stays. readers.go has which jobs could read a cache.
// carry.go computes which rows an epoch leaves for the next one.
//
// The package has more than 15 files because the records of each subject have their own.
//
// The package is pure. It must not know time, sessions, heartbeats or configuration: a replay would not have them.
package durable
