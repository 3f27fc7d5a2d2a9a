//go:build mutant_lease_worker

package worker

import "time"

// expired lets leases last forever. tests/sim must notice.
func expired(time.Duration, time.Duration) bool { return false }
