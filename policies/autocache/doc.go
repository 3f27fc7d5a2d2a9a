// Package autocache decides whether workers cache the elements after a step, and which caches stay when space is short.
//
// Decide is the default policy. It predicts the time and score of three kinds of epochs for each candidate: computing,
// writing and reading epochs. It chooses the candidate with the lowest score over all epochs that are expected, or none.
// The score is that of the policies for workers (autoscale.Goal). Each kind of epoch has its own number of workers.
// Cachew is the published policy, for comparison. Evict chooses the caches that stay below a quota.
//
// All are pure functions. testdata has scripts of inputs and expected decisions. Files:
//
//   - input.go has the measurements.
//   - rate.go fits the speed of a store, and source.go that of a source.
//   - history.go predicts the number of epochs.
//   - model.go predicts an epoch, and measured.go corrects the predictions.
//   - decide.go has Decide, and reasons.go has its reasons.
//   - orders.go compares the decisions in two orders of the steps.
//   - cachew.go has Cachew, and evict.go has Evict.
//
// The package reads no clock and keeps no state, so that a simulator can replay
// recorded measurements. docs/design/0015-autocache.md has the reasons.
//
// Do not import another package of Pecan than autoscale.
package autocache
