// Command fleet measures a dispatcher with fake workers and fake trainers.
//
// Each worker keeps a session over its own connection. It holds the streams that the dispatcher asks it to run, and
// ends each of them after a time. Each trainer creates a job over a registered dataset, opens one epoch, and finishes
// the streams that have ended. Nobody computes or sends an element, so the dispatcher is the only part that works. The
// program prints "ready" when all workers are registered, and at the end its figures as JSON:
//
//	fleet --dispatcher 127.0.0.1:5050 --dataset NAME --workers 1000 --slots 8 --jobs 1 --streams 65536
//
// main.go has the flags and the report, fleet.go the figures that all share, worker.go a worker, trainer.go a trainer,
// and messages.go the sizes of messages.
package main
