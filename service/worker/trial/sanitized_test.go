//go:build asan

package trial

// sanitized means that steps take many times as long, and unevenly, so that measured costs mean little.
const sanitized = true
