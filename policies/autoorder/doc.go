// Package autoorder decides in which order a dataset's transformations run: steps that shrink elements early, steps that inflate them
// late, where the values stay the same. Two policies answer: Paper as published, and Cost, which counts what steps take.
//
// A policy is a function from plain measurements to a decision with its reasons. What it is given is what workers measured of each step,
// what a step does to the components of an element, and which steps hold which behind them. What it gives back is to be tried, and recorded,
// before it is used. It imports nothing of ours, asks no clock and keeps no state of its own, so that a simulator can replay recorded
// measurements through it. Design note 0010 has the whole.
package autoorder
