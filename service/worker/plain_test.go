//go:build !asan

package worker

const sanitized = false
