//go:build mutant_checksum

package transport

// checksumDiffers accepts every payload: tests/sim must notice.
func checksumDiffers(uint32, uint32) bool { return false }
