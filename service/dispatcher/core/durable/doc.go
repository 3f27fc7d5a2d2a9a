// Package durable holds the dispatcher's durable state: datasets, clients, jobs, epochs, streams, caches and orders.
//
// State is the sum of all records in the journal. Only Apply and Restore change it. Equal records give equal states, so a
// dispatcher that replays its journal continues exactly where the last one stopped. A record that does not fit the state
// is an error and changes nothing: the journal is damaged, or a decision was wrong.
//
// An epoch may have 65,536 streams, and few of them are open at once. It has an entry for each active stream. Such a stream
// has had a lease, and a worker, a reader or a closing stream still needs it. For the others it keeps two bits each, and
// sums. No lookup visits all streams.
//
// Files: state.go holds the state, snapshot.go its snapshot, lookup.go what the core reads, questions.go answers about
// jobs. epoch.go holds the streams of an epoch; change.go is the only place that changes one, and keeps sums and indexes.
// apply.go takes each record to its file: apply_job.go, apply_epoch.go, apply_stream.go (leases and consumers),
// apply_lists.go (the same for many streams), workers.go (numbers of workers), apply_cache.go, apply_cache_decision.go,
// apply_order.go, apply_placement.go and apply_learned.go (what other dispatchers have learned). knowledge.go has what jobs
// have taught about graphs, and how long it stays.
// carry.go computes which rows an epoch leaves for the next one.
//
// The package has more than 15 files because the records of each subject have their own.
//
// The package is pure. It must not know time, sessions, heartbeats or configuration: a replay would not have them.
package durable
