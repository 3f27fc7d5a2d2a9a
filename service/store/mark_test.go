package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/service/store"
)

// written returns a directory with acknowledged records, as a killed dispatcher leaves it, and the path of its log.
func written(t *testing.T) (dir, log string) {
	t.Helper()
	base := t.TempDir()
	s := open(t, store.Options{Dir: base})
	for i := range 40 {
		appendAll(t, s, fmt.Sprint("r", i+1, strings.Repeat(".", 100)))
		if err := s.PutGraph(fmt.Sprint("g", i), bytes.Repeat([]byte{byte(i)}, 5000)); err != nil {
			t.Fatal(err)
		}
	}
	appendAll(t, s, "last")
	dir = copyDir(t, base)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	return dir, logs[len(logs)-1]
}

func change(t *testing.T, path string, edit func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, edit(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A store with missing acknowledged records is refused, and its directory does not change.
func TestADamagedDirectoryIsRefusedAndUnchanged(t *testing.T) {
	flip := func(part float64) func(t *testing.T, dir, log string) {
		return func(t *testing.T, _, log string) {
			change(t, log, func(data []byte) []byte {
				data[int(float64(len(data)-1)*part)] ^= 0xff
				return data
			})
		}
	}
	remove := func(pattern string) func(t *testing.T, dir, log string) {
		return func(t *testing.T, dir, _ string) {
			names, _ := filepath.Glob(filepath.Join(dir, pattern))
			if len(names) == 0 {
				t.Fatal("nothing to remove")
			}
			for _, name := range names {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	cases := map[string]func(t *testing.T, dir, log string){
		"a byte at the start of the log": flip(0.01),
		"a byte in the middle":           flip(0.5),
		"a byte near the end":            flip(0.9),
		"the last byte":                  flip(1),
		"half a log": func(t *testing.T, _, log string) {
			change(t, log, func(data []byte) []byte { return data[:len(data)/2] })
		},
		"an empty log":       func(t *testing.T, _, log string) { change(t, log, func([]byte) []byte { return nil }) },
		"no log":             remove("*.log"),
		"no manifest":        remove("MANIFEST*"),
		"no manifest marker": remove("marker.manifest*"),
		"no markers":         remove("marker*"),
		"a damaged mark": func(t *testing.T, dir, _ string) {
			change(t, filepath.Join(dir, "PECAN-MARK"), func(data []byte) []byte { return make([]byte, len(data)) })
		},
		"no mark": remove("PECAN-MARK"),
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			dir, log := written(t)
			damage(t, dir, log)
			before := digest(t, dir)
			s, err := store.Open(store.Options{Dir: dir})
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "Restore") {
				t.Fatalf("got %v", err)
			}
			if after := digest(t, dir); !slices.Equal(before, after) {
				t.Fatalf("the directory was changed from %q to %q", before, after)
			}
		})
	}
}

// digest returns the names and sizes of the files in a directory. It ignores locks and other empty files.
func digest(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 0 {
			all = append(all, fmt.Sprintf("%s %d", entry.Name(), len(data)))
		}
	}
	return all
}

// A torn write that was never acknowledged is not damage.
func TestATornTailIsIgnored(t *testing.T) {
	dir, log := written(t)
	change(t, log, func(data []byte) []byte { return append(data, 1, 2, 3, 4, 5, 6, 7) })
	for range 2 {
		s := open(t, store.Options{Dir: dir})
		if _, records := contents(t, s); len(records) != 41 || records[40] != "last" {
			t.Fatalf("%d records", len(records))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
