//go:build teeth_checksum

package transport

// checksumDiffers takes every payload for whole: tests/sim must notice.
func checksumDiffers(uint32, uint32) bool { return false }
