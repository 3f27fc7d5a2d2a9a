// Package jobmetrics sums the metrics that workers report for one job: elements, CPU seconds and bytes of each graph
// node, recovery counters and failed elements.
//
// A worker process reports running totals, numbered by generation and sequence. Reports keeps the newest totals of each
// worker and the sum of all older generations. The totals of a lost worker stay, because its work was done. A report
// with an old generation or sequence changes nothing, so late and repeated reports are harmless.
//
// profile.go has sums by node. totals.go has the sums of one job. reports.go has the totals by worker. nodes.go answers
// questions about lists of nodes.
//
// The package is pure. It must not know leases, epochs or streams: a sum must not depend on the order in which their
// ends and the reports arrive.
package jobmetrics
