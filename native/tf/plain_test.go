//go:build !asan

package tf

// freedBytes is how much freed memory the process may keep.
const freedBytes = 16 << 20
