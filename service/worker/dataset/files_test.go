package dataset_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/service/graph/rewrite"
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
		// The clock of a server may be ahead.
		{time.Now().Add(3 * time.Second), false},
		{time.Now().Add(time.Hour), true},
	} {
		if err := os.Chtimes(name, time.Time{}, c.changed); err != nil {
			t.Fatal(err)
		}
		state, found, err := dataset.FileState(t.Context(), name)
		if !found || (err == nil) != c.known {
			t.Errorf("changed %v ago: %q, %v, %v", time.Since(c.changed), state, found, err)
		}
		// A table that is filled now has a name of its own in the job.
		if seen[state] {
			t.Errorf("changed %v ago: %q is an earlier state", time.Since(c.changed), state)
		}
		seen[state] = true
		if file := dataset.FileStates(t.Context(), []string{name})[name]; file.State != state || file.Version != c.known {
			t.Errorf("changed %v ago: %+v", time.Since(c.changed), file)
		}
	}
}

// Jobs would share a table if an object without an answer had a version.
func TestAnObjectWithoutAnAnswerHasNoVersion(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	name := "gs://bucket/vocabulary"
	states := dataset.FileStates(ctx, []string{name, filepath.Join(t.TempDir(), "none")})
	if len(states) != 1 || states[name] != (rewrite.FileState{}) {
		t.Errorf("the states are %+v", states)
	}
	if dataset.WithoutVersion(states) != name || dataset.Unchanged(ctx, states) {
		t.Errorf("%q has no version, and the files did not change: %v", dataset.WithoutVersion(states), dataset.Unchanged(ctx, states))
	}
}
