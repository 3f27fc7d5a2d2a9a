// Package resume computes positions, at which a stopped iteration can resume, and encodes them as resume tokens.
//
// A Log (log.go) keeps the last deliveries of a dataset's iterations, because TensorFlow prefetches elements for the
// training loop. Log.At (lookup.go) sums the deliveries (position.go) to the Point (point.go) after a number of results of
// an iterator. token.go encodes and decodes tokens, and shortened.go shortens those of plans with groups. check.go refuses a
// token that does not fit the dataset. restart.go converts a position into one at which a class C dataset may start.
//
// Package client creates a token in RejoiningJob.Save and reads one in RejoiningJob.Load (save_load.go). Tokens have
// format 1 (TokenFormat), or 2 (listFormat) if they list rows by columns. A change of the message's meaning needs a new
// number. Do not add what depends on workers or on the dispatcher: a token must fit another service.
//
// Log.mu is taken after the locks of RejoiningJob and Iteration, and before that of an epoch.
package resume
