// Package schedule divides the workers among streams that wait for one.
//
// Round.Run first leases the streams that must run under any load: all streams of epochs that need all of them open,
// and one stream of every epoch that has none. It then shares the free slots: the epoch with the fewest running streams
// comes next. Prefetched epochs come last and take only slots that no other stream can use.
//
// Files: round.go holds the two phases of a round, demand.go counts loads and orders the epochs, pick.go chooses the worker for
// a stream, need.go says which streams need a worker at all.
//
// The package is pure: equal arguments give equal leases. It knows stored jobs and plain facts about workers; it must not
// know sessions, time or records. The core emits the record in Grant.
package schedule
