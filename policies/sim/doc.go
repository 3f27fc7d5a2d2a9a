// Package sim simulates jobs to compare the policies for workers. A Surface is the true element time of every
// configuration. A Job runs one policy on a surface with noise, start-up delays and changes. A Scenario is a kind of
// jobs. A Report compares the bill of each policy with that of the best fixed configuration.
//
// The events of a simulation are measurement windows, changes of workers, and changes of the job. The means of a window follow
// from the surface in closed form, and then get noise: policies see nothing else, and so a job takes microseconds per window.
// Elements, steps and buffers have no events. What buffers do within a window is tested with real processes.
//
// A simulation is a pure function of its seed: it starts no goroutines and reads no clock.
//
// Files:
//
//   - surface.go has the bottleneck model and random surfaces.
//   - job.go simulates one job.
//   - scenario.go has the compared jobs.
//   - report.go compares policies over many seeds.
//
// The package imports policies only, and no policy imports it.
//
// Do not show a policy what a real dispatcher would not measure.
package sim
