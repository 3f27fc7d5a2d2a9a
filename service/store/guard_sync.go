//go:build !teeth_fsync

package store

import "github.com/cockroachdb/pebble/v2"

// written is when a write counts as done: when the disk has it.
var written = pebble.Sync
