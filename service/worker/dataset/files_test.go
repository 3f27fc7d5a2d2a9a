package dataset_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// The size and the time of a file are a version only if the next change has another time.
func TestAFileThatHasJustChangedHasNoVersion(t *testing.T) {
	name := filepath.Join(t.TempDir(), "records")
	if err := os.WriteFile(name, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	second := time.Now().Truncate(time.Second)
	for _, c := range []struct {
		changed time.Time
		known   bool
	}{
		{time.Now(), false},
		{time.Now().Add(-time.Millisecond), false},
		{time.Now().Add(-time.Second), true},
		{second, false},
		{second.Add(-2 * time.Second), true},
		// The clocks of a server may be ahead.
		{time.Now().Add(time.Hour), true},
	} {
		if err := os.Chtimes(name, time.Time{}, c.changed); err != nil {
			t.Fatal(err)
		}
		state, found, err := dataset.FileState(t.Context(), name)
		if !found || (err == nil) != c.known {
			t.Errorf("changed %v ago: %q, %v, %v", time.Since(c.changed), state, found, err)
		}
		// A table that is filled now has a name of its own.
		if seen[state] {
			t.Errorf("changed %v ago: %q is an earlier state", time.Since(c.changed), state)
		}
		seen[state] = true
	}
}
