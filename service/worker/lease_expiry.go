//go:build !mutant_lease_worker

package worker

import "time"

// expired reports whether the worker had no contact with the dispatcher for the lease time. Another worker may have its
// streams by then.
func expired(away, ttl time.Duration) bool { return away > ttl }
