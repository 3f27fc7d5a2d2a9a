// Package resume knows positions: where an iteration can go on that was stopped, and the token that says so outside of the process.
//
// A Log (log.go) keeps the last deliveries of a dataset's iterations, because TensorFlow reads ahead of the training loop. Log.At
// (lookup.go) adds deliveries up (position.go) to the Point after a number of steps. token.go encodes and decodes the token, check.go
// refuses one that does not fit the dataset, restart.go turns a position into one from which a class C dataset may start.
//
// Package client makes a token in RejoiningJob.Save and reads one in RejoiningJob.Load (checkpoint.go). The format is versioned by
// TokenFormat: a change of the message's meaning needs a new number.
//
// Log.mu is taken after the locks of RejoiningJob and Iteration, and before that of an epoch.
package resume
