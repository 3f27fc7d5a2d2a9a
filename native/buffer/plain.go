//go:build !asan

package buffer

// Sanitized tells that this build runs under AddressSanitizer. See sanitized.go.
const Sanitized = false
