//go:build mutant_lease_worker

package worker

import "time"

// expired lets a worker without contact to the dispatcher run its streams forever. tests/sim must notice.
func expired(time.Duration, time.Duration) bool { return false }
