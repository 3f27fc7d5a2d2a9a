//go:build asan

package tf

// freedBytes is how much freed memory the process may keep. AddressSanitizer keeps freed memory for a while.
const freedBytes = 512 << 20
