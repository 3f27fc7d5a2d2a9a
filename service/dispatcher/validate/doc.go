// Package validate checks the form of requests and removes what could harm from reports, before the core sees them.
//
// Checks refuse a request with a reason: names.go (names, ids, sizes), dataset.go, options.go (and their defaults) and
// worker.go. clean.go repairs reports instead: a worker's session must not end because of one bad number.
//
// The package is pure and keeps no state. Whether a request makes sense now is the core's decision.
package validate
