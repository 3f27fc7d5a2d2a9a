package cachefill

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A part whose files have no known version is computed. It is no failed write, and it leaves the warning about one to the first write
// that fails.
func TestAPartOfAnUnknownVersionIsNoDroppedWrite(t *testing.T) {
	// The client of the object store cannot be made without its certificates, so no version is known.
	t.Setenv("CURL_CA_BUNDLE", filepath.Join(t.TempDir(), "none"))
	var log bytes.Buffer
	d, runtime := directory(t)
	d.Log = slog.New(slog.NewTextHandler(&log, nil))
	plan, whole, graphs := cached(t)
	from := &computed{runtime: runtime, graphs: graphs}
	local := source(t, d, plan, whole, nil)
	begin(t, local, from)
	want := numbers(t, local)
	if d.dropped.Load() > 0 || d.unversioned.Load() > 0 {
		t.Fatal("parts of local files have no version")
	}
	whole.FileNames = func(uint32) []string { return []string{"gs://bucket/object"} }
	s := source(t, d, plan, whole, nil)
	begin(t, s, from)
	if got, written := numbers(t, s), writtenBy(s); !slices.Equal(got, want) || len(written) > 0 {
		t.Errorf("%v, want %v; written: %v", got, want, written)
	}
	metrics := d.Metrics()
	if metrics.WritesDropped != 0 || metrics.PartsUnversioned != uint64(len(whole.Parts)) {
		t.Errorf("after %d parts: %v", len(whole.Parts), metrics)
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "version of a source file is not known") {
		t.Errorf("log: %s", text)
	}
	log.Reset()
	d.drop("name", errors.New("no space"))
	if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "no space") {
		t.Errorf("log of the first failed write: %s", text)
	}
}
