// Package ordering proposes an order for the steps of a dataset and explains it.
//
// It describes the steps to a policy (policies/autoorder): what the graph shows of them, and what workers measured. It
// checks the policy's order against the graph. If the graph refuses the order, the package adds constraints and runs
// the policy again.
//
// It promises: equal arguments give equal proposals, and streams have the same elements in a proposed order.
//
// propose.go has Propose and the search. steps.go makes the steps, sizes and costs for the policy. constraints.go finds the
// reasons why steps may not swap, and refused.go finds such reasons after the graph has refused an order. names.go writes
// names and traits as text. resumed_order.go checks the order that a resume token names.
//
// Do not adopt a proposal here: core/rollout tries it and records the decision first. Do not read a graph's functions
// here: service/graph/order finds the traits of steps. Design note 0010 has the reasons.
package ordering
