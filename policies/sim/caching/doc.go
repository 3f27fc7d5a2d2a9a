// Package caching simulates jobs with caches to compare the policies for caches. A World has the times of a pipeline's
// steps, of its source, its store and its trainer. An epoch is a run of its batches through queues. Each batch needs the
// source or the store, a thread of a worker, and the trainer, for random times. The policies know only what a profile and
// probes of the store measure, with noise. A Run compares the automatic choice with each fixed one.
//
// The simulation does not use the model of package autocache: the time of an epoch follows from the queues.
//
// A simulation is a pure function of its seed: it starts no goroutines and reads no clock.
//
// Files:
//
//   - world.go has an epoch, and measure.go has the measurements that policies get from it.
//   - run.go has a job of several epochs, and bill.go has a job whose number of workers is free.
//   - sweep.go has the sweep of the Cachew paper.
//   - random.go has random worlds.
//
// The package imports policies only, and no policy imports it.
//
// Do not show a policy what a real dispatcher would not measure.
package caching
