//go:build !teeth_lease_client

package epoch

// outdated tells what comes under, or tells of, a lease that the stream has passed.
func outdated(told, known uint64) bool { return told < known }
