package extents_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/service/graph/extents"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "extents")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CACHE_HOME", dir)
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// settledFile returns a record file that was last changed an hour ago.
func settledFile(t *testing.T) string {
	t.Helper()
	name := sparse(t, 64, 1<<20)
	setBack(t, name)
	return name
}

func setBack(t *testing.T, name string) {
	t.Helper()
	at := time.Unix(time.Now().Unix()-3600, 0).Truncate(time.Hour)
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
}

// damage changes the header of the second record, and nothing else that the state of the file shows.
func damage(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 1<<20+16); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	setBack(t, name)
}

func count(t *testing.T, ctx context.Context, name string) (int, error) {
	t.Helper()
	_, n, err := extents.Divide(ctx, records(t, nil, name))
	return n, err
}

func keptFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "pecan", "extents", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestAnIndexIsKept(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	name := settledFile(t)
	if n, err := count(t, t.Context(), name); n != 64 || err != nil {
		t.Fatalf("%d extents, %v", n, err)
	}
	damage(t, name)
	if n, err := count(t, t.Context(), name); n != 64 || err != nil {
		t.Errorf("the kept index is not used: %d extents, %v", n, err)
	}
	kept := keptFiles(t)
	if len(kept) != 1 {
		t.Fatalf("kept: %v", kept)
	}
	whole, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	for what, content := range map[string][]byte{
		"truncated": whole[:len(whole)/2], "empty": nil, "changed": bytes.Replace(whole, []byte(`"Records":64`), []byte(`"Records":63`), 1),
	} {
		if err := os.WriteFile(kept[0], content, 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := count(t, t.Context(), name); n != 0 || err != nil {
			t.Errorf("a kept index that is %s: %d extents, %v", what, n, err)
		}
	}
	if err := os.WriteFile(kept[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := os.Chtimes(name, now, now); err != nil {
		t.Fatal(err)
	}
	if n, err := count(t, t.Context(), name); n != 0 || err != nil {
		t.Errorf("the kept index of a file that has changed: %d extents, %v", n, err)
	}
}

func TestTheIndexOfAFileThatHasJustChangedIsNotKept(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	if n, err := count(t, t.Context(), sparse(t, 64, 1<<20)); n != 64 || err != nil {
		t.Fatalf("%d extents, %v", n, err)
	}
	if kept := keptFiles(t); len(kept) != 0 {
		t.Errorf("kept: %v", kept)
	}
}

func TestAReadThatTakesTooLongContinues(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	name := settledFile(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for deadline := time.Now().Add(10 * time.Second); len(keptFiles(t)) == 0; time.Sleep(time.Millisecond) {
		if n, err := count(t, ended, name); err == nil && n != 64 {
			t.Fatalf("%d extents, without an error", n)
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is kept")
		}
	}
}

func TestTheNumberOfKeptIndexesIsBounded(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := filepath.Join(os.Getenv("XDG_CACHE_HOME"), "pecan", "extents")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		name := filepath.Join(dir, string(rune('a'+i%26))+string(rune('a'+i/26)))
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		setBack(t, name)
	}
	name := settledFile(t)
	if n, err := count(t, t.Context(), name); n != 64 || err != nil {
		t.Fatalf("%d extents, %v", n, err)
	}
	damage(t, name)
	if n, _ := count(t, t.Context(), name); len(keptFiles(t)) != 256 || n != 64 {
		t.Errorf("%d kept indexes, and the newest gives %d extents", len(keptFiles(t)), n)
	}
}
