//go:build asan

package trial

// sanitized: steps take many times as long, and not evenly, so that what they cost says little.
const sanitized = true
