//go:build !mutant_lease_worker

package worker

import "time"

// expired reports whether the leases have expired. The dispatcher may have leased their streams to others.
func expired(away, ttl time.Duration) bool { return away > ttl }
