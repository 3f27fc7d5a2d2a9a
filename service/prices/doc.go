// Package prices reads the table of prices: what an hour of each type of trainer and worker costs, and
// storage for caches. Policies get
// the prices of one job as numbers; this package finds them by type, zone and kind of purchase.
//
// The format is in docs/formats/prices.md. Unknown fields, negative prices and unknown types are errors: a wrong
// price leads to wrong decisions without any visible fault.
//
// prices.go has the table. machine.go has the names of machines. file.go reads a table again when its file has changed.
//
// Do not choose a price for an unknown type, and do not compute what follows from prices: policies do that.
package prices
