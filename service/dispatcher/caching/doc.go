// Package caching decides which step of a job is cached. It translates what the core knows of the job, its workers and their
// store into the input of the policy autocache, and the policy's decision into a message.
//
// Files: decide.go runs the policy, translate.go makes its input from the metrics of steps, rates.go from those of the store,
// and ordered.go for a decided order of the steps.
//
// Everything here is a pure function, and keeps no state: the core records decisions.
package caching
