//go:build !asan

package buffer

// Sanitized reports whether this build runs under AddressSanitizer. See sanitized.go.
const Sanitized = false
