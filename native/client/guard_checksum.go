//go:build !teeth_checksum

package client

// damaged tells a payload that is not what was sent.
func damaged(got, sent uint32) bool { return got != sent }
