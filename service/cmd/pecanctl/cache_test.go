package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/service/cache"
)

// cacheFiles makes a directory with a file of 100 bytes for each name.
func cacheFiles(t *testing.T, names ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cache")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(path, name), make([]byte, 100), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func namesIn(t *testing.T, path string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// The fixed dispatcher serves cluster c-1.
func TestOnlyTheFilesOfAClusterThatIsGoneAreRemoved(t *testing.T) {
	gone := []string{cache.Name("c-2", "key", 0, 1, 1, "w"), strings.Replace(cache.Name("c-2", "key", 1, 1, 1, "w"), ".seg", ".tmp", 1)}
	others := []string{cache.Name("c-1", "key", 0, 1, 1, "w"), cache.Name("c-20", "key", 0, 1, 1, "w"), "c-2", "notes.txt"}
	path := cacheFiles(t, append(others, gone...)...)
	o := &options{dispatcher: serve(t), timeout: 10 * time.Second}
	for cluster, want := range map[string]string{
		"":    "--cluster is missing: " + path + " has files of c-1 (1 files, 100 B), c-2 (2 files, 200 B), c-20 (1 files, 100 B)",
		"c-3": "no files of cluster c-3, but of c-1",
		"c-1": "cluster c-1 is not gone",
	} {
		o.cluster = cluster
		if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("cluster %q: %v, want %s", cluster, err, want)
		}
	}
	if got := namesIn(t, path); len(got) != 6 {
		t.Fatalf("a refused command leaves %v", got)
	}
	var out bytes.Buffer
	o.cluster = "c-2"
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &out); err != nil || out.String() != "removed 2 files (200 B) of cluster c-2\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	left := strings.Join(namesIn(t, path), " ")
	for _, name := range others {
		if !strings.Contains(left+" ", name+" ") {
			t.Errorf("%s is gone; left are %s", name, left)
		}
	}
	for _, name := range gone {
		if strings.Contains(left, name) {
			t.Errorf("%s is left", name)
		}
	}
}

// Without a dispatcher, the operator's word counts.
func TestADirectoryOfCachesIsNotMadeByItsCleaning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mistyped")
	o := &options{dispatcher: "127.0.0.1:1", timeout: time.Second, cluster: "c-2"}
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the directory was made: %v", err)
	}
	path = cacheFiles(t, cache.Name("c-2", "key", 0, 1, 1, "w"))
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err != nil || len(namesIn(t, path)) != 0 {
		t.Error(namesIn(t, path), err)
	}
}
