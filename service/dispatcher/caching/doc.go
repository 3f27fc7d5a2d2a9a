// Package caching decides which step of a job is cached. It makes the input of the policy autocache from what the core knows
// of the job, its workers and their store. It makes a message of the policy's decision.
//
// decide.go runs the policy. translate.go makes the policy's input from the metrics of steps, and rates.go makes it from the
// metrics of the store. ordered.go makes the input for a decided order of the steps.
//
// Everything here is a pure function. Do not keep state here: the core records decisions.
package caching
