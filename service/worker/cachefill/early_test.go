package cachefill

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The segment of the next part is open before the part begins. One that could not be opened early is opened again.
func TestTheNextSegmentIsOpenedEarly(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	from := &computed{runtime: runtime, graphs: graphs}
	writing := source(t, d, plan, whole, nil)
	begin(t, writing, from)
	want := numbers(t, writing)
	segments := writtenBy(writing)
	from.opened = nil
	second := filepath.Join(d.path, segments[1].GetName())
	aside := filepath.Join(t.TempDir(), "aside")
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	s := source(t, d, plan, whole, segments)
	begin(t, s, from)
	opened(s)
	move(second, aside)
	if got := numbers(t, s); !slices.Equal(got, want) || len(from.opened) != 0 {
		t.Errorf("%v, want %v; parts %v were computed", got, want, from.opened)
	}
	again := source(t, d, plan, whole, segments)
	begin(t, again, from)
	if opened(again) {
		t.Fatal("a missing file was opened")
	}
	move(aside, second)
	if got := numbers(t, again); !slices.Equal(got, want) || len(from.opened) != 0 {
		t.Errorf("%v, want %v; parts %v were computed", got, want, from.opened)
	}
	if invalid := d.invalid.Load(); invalid != 0 {
		t.Errorf("%d segments are invalid", invalid)
	}
	// A source that is closed closes what it has opened early.
	closed := source(t, d, plan, whole, segments)
	begin(t, closed, from)
	closed.Close()
	if files := openFiles(t, second); files != 0 {
		t.Errorf("the segment is open %d times", files)
	}
}

// opened waits for an opening in progress. It reports whether a segment was opened early.
func opened(s *Source) bool {
	s.early.mu.Lock()
	defer s.early.mu.Unlock()
	return s.early.reader != nil
}

// openFiles counts the descriptors of this process for a file.
func openFiles(t *testing.T, path string) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if name, err := os.Readlink(filepath.Join("/proc/self/fd", entry.Name())); err == nil && name == path {
			n++
		}
	}
	return n
}
