//go:build mutant_lease_client

package epoch

// outdated accepts every lease: tests/sim must notice.
func outdated(uint64, uint64) bool { return false }
