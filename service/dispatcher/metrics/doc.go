// Package metrics exports the dispatcher's Prometheus metrics.
//
// Counters grow when decisions become durable (count.go). Gauges are read from the dispatcher's status when Prometheus
// scrapes (collect.go). metrics.go declares all of them, and Source, which is the dispatcher as this package sees it.
//
// A metric's name is part of the interface: the reference and dashboards use it. Do not decide anything here.
package metrics
