// Package placement decides which workers serve a job: which ones may, and which of these do if the job has an objective.
//
// Its owner, the core, reports what it learns of workers and clients: SetWorker, RemoveWorker, AddClient, RemoveClient,
// Reported. serving.go keeps these reports and an index of workers by host and trainer. Serves and Locals say which
// workers may serve a job.
//
// A job with an objective has a search. Step continues each search a few times per second, in this order:
//
//	placement.go  the search: it asks for a decision (Request), and Decided records the answer
//	members.go    chooses the members of the job, as many as were decided
//	leave.go      takes streams from workers that no longer serve the job
//	local.go      divides the wanted local workers among the trainers that may start them
//	window.go     measures how fast the members served the job; the next decision follows from that
//
// wanted.go sums the remote workers that all jobs want from a provider. status.go reports the decisions and what they rest on.
//
// Only the records PlacementDecided and PlacementLearned are durable. After a restart a search waits for the trainers and
// workers that were there, and then continues from the last recorded decision.
//
// The package knows stored jobs and plain facts about workers and clients. It must not know sessions or prices. It must not
// compare configurations, because the caller decides. Equal calls give equal results.
package placement
