package store_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pecan-ml/pecan/service/store"
)

var (
	stride = flag.Int("stride", 29, "D2 flips every stride-th bit of a small store; 1 for all bits; five times as large with -short")
	flips  = flag.Int("flips", 200, "how many random bits D2 flips in a big store")
)

const workDir = "/work"

// files has the files in the directory of a store, by name.
type files map[string][]byte

// readFiles copies the files in the directory of a memory file system. It starts again if pebble removes an obsolete
// file meanwhile.
func readFiles(t *testing.T, fsys vfs.FS) files {
	t.Helper()
	for {
		all, err := tryReadFiles(fsys)
		switch {
		case err == nil:
			return all
		case !errors.Is(err, fs.ErrNotExist):
			t.Fatal(err)
		}
	}
}

func tryReadFiles(fsys vfs.FS) (files, error) {
	names, err := fsys.List(workDir)
	if err != nil {
		return nil, err
	}
	all := files{}
	for _, name := range names {
		file, err := fsys.Open(filepath.Join(workDir, name))
		if err != nil {
			return nil, err
		}
		all[name], err = io.ReadAll(file)
		file.Close()
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// disk returns a memory file system with these files.
func (f files) disk(t *testing.T) vfs.FS {
	t.Helper()
	fsys := vfs.NewMem()
	if err := fsys.MkdirAll(workDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range f {
		file, err := fsys.Create(filepath.Join(workDir, name), vfs.WriteCategoryUnspecified)
		if err == nil {
			// Under the race detector this file system overwrites the slice that it was given, to expose misuse.
			_, err = file.Write(bytes.Clone(data))
		}
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	return fsys
}

// with returns a copy with one file changed; nil removes the file.
func (f files) with(name string, data []byte) files {
	changed := maps.Clone(f)
	if changed[name] = data; data == nil {
		delete(changed, name)
	}
	return changed
}

// matching returns the only file whose name matches the pattern.
func (f files) matching(t *testing.T, pattern string) string {
	t.Helper()
	found := f.all(pattern)
	if len(found) != 1 {
		t.Fatalf("%d files match %s: %q", len(found), pattern, found)
	}
	return found[0]
}

// all returns the files whose names match the pattern.
func (f files) all(pattern string) []string {
	var found []string
	for name := range f {
		if ok, _ := filepath.Match(pattern, name); ok {
			found = append(found, name)
		}
	}
	return found
}

// content is the content of a store.
type content struct {
	snapshot string
	records  []string
	graphs   map[string]string
}

func (c content) String() string {
	return fmt.Sprintf("snapshot %q, records %q, %d graphs", c.snapshot, c.records, len(c.graphs))
}

// readAll opens a store and reads all of it. It returns the error of the opening or the reading.
func readAll(t *testing.T, fsys vfs.FS, graphs []string) (c content, err error) {
	t.Helper()
	s, err := openSoon(t, store.Options{Dir: workDir, FS: fsys})
	if err != nil {
		return c, err
	}
	defer s.Close()
	err = s.Load(func(data []byte) error { c.snapshot = string(data); return nil },
		func(data []byte) error { c.records = append(c.records, string(data)); return nil })
	if err != nil {
		return c, err
	}
	c.graphs = map[string]string{}
	for _, name := range graphs {
		graph, err := s.Graph(name)
		if err != nil {
			return c, err
		}
		c.graphs[name] = string(graph)
	}
	return c, nil
}

var graphNames = []string{"f1", "f2"}

// filled fills a store on a memory disk, and returns its files as a killed process leaves them.
func filled(t *testing.T, records int, reopened bool) (files, content) {
	t.Helper()
	fsys := vfs.NewMem()
	want := content{graphs: map[string]string{}}
	s := open(t, store.Options{Dir: workDir, FS: fsys})
	for i, name := range graphNames {
		graph := strings.Repeat(name, 20+i)
		want.graphs[name] = graph
		if err := s.PutGraph(name, []byte(graph)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range records {
		if i == records/2 {
			want.snapshot, want.records = fmt.Sprint("all up to ", i), nil
			if err := s.Compact([]byte(want.snapshot)); err != nil {
				t.Fatal(err)
			}
		}
		record := fmt.Sprintf("record %d %s", i+1, strings.Repeat("x", i%7))
		want.records = append(want.records, record)
		appendAll(t, s, record)
	}
	if reopened {
		// The opening moves the records of the log into a table.
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, store.Options{Dir: workDir, FS: fsys})
		appendAll(t, s, "one more")
		want.records = append(want.records, "one more")
	}
	killed := readFiles(t, fsys)
	for reopened && len(killed.all("*.log")) > 1 {
		// Pebble removes the log of the time before the opening in the background.
		time.Sleep(time.Millisecond)
		killed = readFiles(t, fsys)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return killed, want
}

// accepted opens a damaged store. The store must either be refused with an error that names the directory, or have its
// original content. accepted returns true in the second case.
func accepted(t *testing.T, damaged files, want content, what string) bool {
	t.Helper()
	got, err := readAll(t, damaged.disk(t), graphNames)
	switch {
	case err == nil:
		if got.String() != want.String() || !maps.Equal(got.graphs, want.graphs) {
			t.Errorf("%s is taken for data: %v, want %v", what, got, want)
		}
		return true
	case !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrNewer):
		t.Errorf("%s: unexpected error %v", what, err)
	case !strings.Contains(err.Error(), workDir):
		t.Errorf("%s: the error does not name the directory: %v", what, err)
	}
	return false
}

// D2: single bits of a small store flip; `make damage` flips all of them. The store is refused, or its content is
// unchanged.
func TestD2NoFlippedBitOfASmallStoreIsTakenForData(t *testing.T) {
	for name, reopened := range map[string]bool{"in its log": false, "in its tables": true} {
		t.Run(name, func(t *testing.T) {
			killed, want := filled(t, 6, reopened)
			if !accepted(t, killed, want, "an undamaged store") {
				t.Fatal("an undamaged store is refused")
			}
			refused, step := map[string]int{}, *stride
			if testing.Short() {
				step *= 5
			}
			for _, name := range slices.Sorted(maps.Keys(killed)) {
				for bit := 0; bit < 8*len(killed[name]); bit += step {
					if name == "PECAN-MARK" && bit/8%4096 >= 28 {
						// The rest of each page is never read.
						continue
					}
					data := bytes.Clone(killed[name])
					data[bit/8] ^= 1 << (bit % 8)
					if !accepted(t, killed.with(name, data), want, fmt.Sprintf("bit %d of byte %d of %s (%d bytes)", bit%8, bit/8, name, len(data))) {
						refused[filepath.Ext(name)]++
					}
				}
			}
			t.Logf("refused: %v", refused)
			if refused[".log"] == 0 || reopened && refused[".sst"] == 0 {
				t.Errorf("no damage of the log or the tables was refused: %v", refused)
			}
		})
	}
}

// D2: random bits of a large store flip; `make damage` flips 10,000.
func TestD2NoFlippedBitOfABigStoreIsTakenForData(t *testing.T) {
	killed, want := filled(t, 3000, true)
	rng := rand.New(rand.NewPCG(2, 2))
	names := slices.Sorted(maps.Keys(killed))
	refused := 0
	for range *flips {
		name := names[rng.IntN(len(names))]
		if len(killed[name]) == 0 {
			continue
		}
		data, bit := bytes.Clone(killed[name]), rng.IntN(8*len(killed[name]))
		data[bit/8] ^= 1 << (bit % 8)
		if !accepted(t, killed.with(name, data), want, fmt.Sprintf("bit %d of byte %d of %s", bit%8, bit/8, name)) {
			refused++
		}
	}
	if t.Logf("%d of %d refused", refused, *flips); refused == 0 && *flips > 0 {
		t.Error("no flip was refused")
	}
}
