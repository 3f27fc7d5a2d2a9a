//go:build teeth_fsync

package store

import "github.com/cockroachdb/pebble/v2"

// written is before the disk has it: tests/sim must notice.
var written = pebble.NoSync
