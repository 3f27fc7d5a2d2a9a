// Package durable holds the dispatcher's durable state: datasets, clients, jobs, epochs, streams, caches and orders.
//
// State is the sum of all records in the journal. Only Apply and Restore change it. Equal records give equal states, so a
// dispatcher that replays its journal continues exactly where the last one stopped. A record that does not fit the state
// is an error and changes nothing: the journal is damaged, or a decision was wrong.
//
// Files: state.go holds the state and its snapshot, lookup.go what the core reads, questions.go answers about stored
// messages. apply.go takes each record to its file: apply_job.go, apply_epoch.go, apply_stream.go (leases and consumers),
// apply_cache.go and apply_order.go.
//
// The package is pure. It must not know time, sessions, heartbeats or configuration: a replay would not have them.
package durable
