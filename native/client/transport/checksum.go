//go:build !mutant_checksum

package transport

// checksumDiffers reports whether a payload is not what was sent.
func checksumDiffers(got, sent uint32) bool { return got != sent }
