package worker

import (
	"testing"
	"time"
)

// waitFor polls a condition that becomes true by itself.
func waitFor(t testing.TB, what string, condition func() bool) {
	t.Helper()
	end := time.Now().Add(deadline)
	for !condition() {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", deadline, what)
		}
		time.Sleep(time.Millisecond)
	}
}
