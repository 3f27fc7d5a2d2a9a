// Package autocache decides whether workers cache the elements after a step, and which caches stay when space is short.
//
// Decide is the default policy. For each candidate it predicts time and score of three kinds of epochs: one that computes,
// the first one, which writes, and later ones, which read. It chooses the candidate with the lowest score over all epochs
// that are expected, or none. The score is that of the policies for workers (autoscale.Goal), and each mode has the number
// of workers that suits it. Cachew is the published policy, for comparison. Evict chooses the caches that stay below a
// quota.
//
// All are pure functions. testdata has scripts of inputs and expected decisions. Files:
//
//   - input.go has the measurements.
//   - rate.go fits the speed of a store.
//   - history.go predicts the number of epochs.
//   - model.go predicts an epoch.
//   - decide.go has Decide, and reasons.go has its reasons.
//   - orders.go compares the decisions in two orders of the steps.
//   - cachew.go has Cachew, and evict.go has Evict.
//
// The package reads no clock and keeps no state, so that a simulator can replay
// recorded measurements. docs/design/0015-autocache.md has the reasons.
//
// Do not import another package of Pecan than autoscale.
package autocache
