//go:build asan

package buffer

// Sanitized reports whether this build runs under AddressSanitizer, which does not observe memory from mmap.
// A session then uses a checked pool, so that a read past a buffer, or through a tensor that outlives its
// buffer, faults.
const Sanitized = true
