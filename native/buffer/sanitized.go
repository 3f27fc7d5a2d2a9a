//go:build asan

package buffer

// Sanitized tells that this build runs under AddressSanitizer, which does not see memory that comes from mmap: there,
// the pool of a session is a checked one, so that a tensor that outlives its block, or a read behind it, faults.
const Sanitized = true
