//go:build !teeth_lease_worker

package worker

import "time"

// expired tells that leases are over: the dispatcher may have given their streams to others.
func expired(away, ttl time.Duration) bool { return away > ttl }
