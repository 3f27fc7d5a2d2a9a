//go:build !mutant_fsync

package store

import "github.com/cockroachdb/pebble/v2"

// syncMode makes a write return only after the data is on disk.
var syncMode = pebble.Sync
