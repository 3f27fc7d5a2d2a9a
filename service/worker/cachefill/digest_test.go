package cachefill

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTheDigestOfSourcesChangesWithTheirFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	changeTo := func(text string) {
		t.Helper()
		changed := time.Now().Add(-time.Minute)
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, changed, changed)); err != nil {
			t.Fatal(err)
		}
	}
	changeTo("one")
	of := func(names ...string) string {
		sum, err := digest(t.Context(), names)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	before := of(file, "no file", "gs://bucket", "gs://bucket/folder/")
	if of("no file", file, "nor this") != before {
		t.Error("strings that name no file count")
	}
	changeTo("two")
	if of(file) == before {
		t.Error("a file that changed goes unseen")
	}
}
