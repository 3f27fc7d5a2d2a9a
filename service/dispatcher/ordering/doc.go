// Package ordering proposes an order for the steps of a dataset and explains it.
//
// It describes the steps to a policy (policies/autoorder): what the graph shows of them and what workers measured. It then
// checks the policy's answer against the graph, and asks again if the graph refuses it.
//
// Files in the order of a proposal: propose.go (Propose, the search), steps.go (steps, sizes and costs for the policy),
// constraints.go (which steps may not swap, and why), names.go (names and traits in words). position.go checks the order
// that a position names.
//
// The package is pure: equal arguments give equal proposals. A proposal must be tried before it is used and recorded before
// it is adopted; both are the core's (core/rollout). Design note 0010 describes the whole.
package ordering
