//go:build mutant_fsync

package store

import "github.com/cockroachdb/pebble/v2"

// syncMode makes a write return before the data is on disk. The simulation must detect this.
var syncMode = pebble.NoSync
