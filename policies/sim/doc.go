// Package sim simulates jobs to compare the policies for workers. A Surface is the true element time of every
// configuration. A Job runs one policy on a surface with noise, start-up delays and changes. A Scenario is a kind of
// jobs. A Report compares the bill of each policy with that of the best fixed configuration.
//
// The events of a simulation are measurement windows, starts and losses of workers, and changes of the job. The surface gives the
// means of a window in closed form, and the simulation adds noise. A window therefore takes microseconds. Elements, steps
// and buffers have no events. Tests with real processes cover the buffers within a window.
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
