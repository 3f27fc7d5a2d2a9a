// Package ordering proposes in which order the steps of a dataset run, and says why: it tells a policy what the graph shows of the steps
// and what workers measured of them, and holds what the policy answers against the graph.
//
// It is pure: equal arguments give equal proposals. What it proposes is to be tried before it is used, and recorded before it is adopted;
// both are for who asks. Design note 0010 has the whole.
package ordering
