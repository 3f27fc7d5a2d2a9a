// Package sim simulates jobs to compare the policies for workers. A Surface is the true element time of every
// configuration. A Job runs one policy on a surface with noise, start-up delays and changes. A Scenario is a kind of
// jobs. A Report compares the bill of each policy with that of the best fixed configuration.
//
// A simulation is a pure function of its seed: it starts no goroutines and reads no clock.
//
// Files: surface.go has the bottleneck model and random surfaces, job.go the simulation of one job, scenario.go the
// compared jobs, report.go the comparison of policies over many seeds.
//
// The package imports policies only, and no policy imports it.
package sim
