// Package schedule divides the workers among streams that wait for one.
//
// Scheduler.Run first leases the streams that must run under any load. Some epochs need streams open together: all of
// them, or in mode deterministic those of the group that is read. Every other epoch needs one open stream. Run then
// shares the free slots by weight: first among tenants, then among the jobs of a tenant, then among the epochs of a
// job. The one with the fewest running streams for its weight comes next. A quota bounds the slots that a tenant or a
// job gets in this way. Prefetched epochs come last and take only slots that no other stream can use. Closing streams
// need no slot. They are leased when the streams that they join have workers.
//
// A worker holds a produced stream until a trainer has it. A worker with many of them gives its free slots only to epochs whose
// trainers keep up. So a trainer that pauses keeps no slot from other jobs.
//
// An epoch leases its streams in their order. If no streams must be open together, the owner may name some to be leased last.
//
// Slots get free because streams end. Preempt is for jobs whose streams are long: it chooses streams to take from jobs with
// more than their share.
//
// The cost of a run grows with what changed since the last one. The owner reports changed epochs and workers, and heaps
// keep both in order. An epoch whose streams no worker can take is set aside until a worker has room for it. The heaps have
// the workers that serve any job. The few local workers that may serve a job are compared with the top.
//
// scheduler.go has the phases of a run. slot_share.go has the tree of shares of slots. demand.go has the epochs and their
// waiting streams. pick.go chooses workers, and worker.go has their loads. queue.go is the heap of all three. preempt.go
// chooses the streams that leave their workers. need.go says which streams need a worker at all.
//
// The package knows stored jobs and plain facts about workers. It must not know sessions, time or records. The core emits
// the record in Grant. Equal calls give equal leases.
package schedule
