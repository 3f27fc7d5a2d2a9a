//go:build !asan

package trial

const sanitized = false
