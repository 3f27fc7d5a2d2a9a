package cache

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/service/internal/safedir"
)

var testID = ID{Key: strings.Repeat("ab", 32), Part: 3, Parts: 8, Source: "a digest"}

var testDTypes = []uint32{9, 1}

const testName = "c-0-abab-3-17-1-0123456789abcdef.seg"

// chunks makes elements of many sizes; some fill blocks of their own.
func chunks(seed uint64, n int) []Chunk {
	random := rand.New(rand.NewPCG(seed, 1))
	sizes := []int{0, 1, 7, 100, 4096, 70_000, blockBytes + 5}
	var out []Chunk
	for i := range n {
		payload := make([]byte, sizes[random.IntN(len(sizes))])
		for j := range payload {
			payload[j] = byte(random.IntN(4))
		}
		out = append(out, Chunk{Count: 1 + random.IntN(5), Flags: uint32(i), Meta: []byte(fmt.Sprintf("meta of %d", i)), Payload: [][]byte{payload[:len(payload)/2], payload[len(payload)/2:]}})
	}
	return out
}

func whole(c *Chunk) []byte { return bytes.Join(c.Payload, nil) }

func write(t testing.TB, d *Dir, name string, id ID, list []Chunk, compress bool) Segment {
	t.Helper()
	above := Uncompressed
	if compress {
		above = 0
	}
	w, err := d.Create(t.Context(), name, id, testDTypes, above)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		if err := w.Append(&list[i]); err != nil {
			t.Fatal(err)
		}
	}
	s, err := w.Commit()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readAll gives what can be read before the end or an error. Every chunk has to be the one that was written.
func readAll(t testing.TB, d *Dir, s Segment, want []Chunk) (int, error) {
	t.Helper()
	r, err := d.Open(s, new(pool).alloc)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for i := 0; ; i++ {
		c, err := r.Next()
		if err != nil {
			return i, err
		}
		if i >= len(want) || c.Count != want[i].Count || c.Flags != want[i].Flags || !bytes.Equal(c.Meta, want[i].Meta) || !bytes.Equal(whole(&c), whole(&want[i])) {
			t.Fatalf("chunk %d is not the one that was written", i)
		}
	}
}

func open(t testing.TB, path string, budget int64) *Dir {
	t.Helper()
	d, err := OpenDir(path, budget)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestASegmentReturnsTheWrittenElements(t *testing.T) {
	for _, compress := range []bool{false, true} {
		for _, n := range []int{0, 1, 2, 60} {
			d := open(t, t.TempDir(), 0)
			list := chunks(uint64(n), n)
			s := write(t, d, testName, testID, list, compress)
			got, err := readAll(t, d, s, list)
			if got != n || !errors.Is(err, io.EOF) {
				t.Errorf("compress=%v: %d of %d chunks: %v", compress, got, n, err)
			}
			elements := uint64(0)
			for _, c := range list {
				elements += uint64(c.Count)
			}
			if s.Elements != elements {
				t.Errorf("%d elements, %d were written", s.Elements, elements)
			}
		}
	}
}

func TestCompressionMakesASegmentSmaller(t *testing.T) {
	d, list := open(t, t.TempDir(), 0), chunks(3, 40)
	plain := write(t, d, testName, testID, list, false)
	small := write(t, d, "c-0-abab-3-18-1-0123456789abcdef.seg", testID, list, true)
	if small.Bytes >= plain.Bytes {
		t.Errorf("%d bytes compressed, %d plain", small.Bytes, plain.Bytes)
	}
}

// The first block is a sample: it must become smaller by a quarter, and the compressor must be faster than the store.
func TestASampleDecidesWhetherASegmentIsCompressed(t *testing.T) {
	random := make([]byte, blockBytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	same := make([]byte, blockBytes)
	for what, c := range map[string]struct {
		above  float64
		blocks [][]byte
		want   []uint32
	}{
		"the store is slower":              {1, [][]byte{same, random, same}, []uint32{snappyBlock, 0, snappyBlock}},
		"the store is faster":              {1e15, [][]byte{same, same}, []uint32{0, 0}},
		"the store's speed is not known":   {Uncompressed, [][]byte{same, same}, []uint32{0, 0}},
		"the sample does not save as much": {0, [][]byte{random, same}, []uint32{0, 0}},
	} {
		d := open(t, t.TempDir(), 0)
		w, err := d.Create(t.Context(), testName, testID, testDTypes, c.above)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range c.blocks {
			if err := w.Append(&Chunk{Count: 1, Payload: [][]byte{block}}); err != nil {
				t.Fatal(err)
			}
		}
		var got []uint32
		for _, b := range w.blocks {
			got = append(got, b.flags)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: the blocks have flags %v, want %v", what, got, c.want)
		}
		if err := w.Abort(); err != nil {
			t.Error(err)
		}
	}
}

func TestPayloadsAreAligned(t *testing.T) {
	for _, compress := range []bool{false, true} {
		path := t.TempDir()
		d, list := open(t, path, 0), chunks(7, 60)
		s := write(t, d, testName, testID, list, compress)
		r, err := d.Open(s, new(pool).alloc)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if !slices.Equal(r.DTypes(), testDTypes) {
			t.Errorf("dtypes %v", r.DTypes())
		}
		for _, b := range r.blocks {
			if b.flags == 0 && (b.offset+uint64(b.stored-b.raw))%alignment != 0 {
				t.Errorf("the chunks of block %v begin at byte %d", b, b.offset+uint64(b.stored-b.raw))
			}
		}
		for range list {
			c, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if at := int(r.blocks[r.next-1].raw) - len(r.rest) - aligned(c.Size()); at%alignment != 0 {
				t.Errorf("compress=%v: a payload of %d bytes begins at byte %d of its block", compress, c.Size(), at)
			}
		}
	}
}

func TestTheBudgetIsKept(t *testing.T) {
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "someone else's"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, path, 3<<20)
	w, err := d.Create(t.Context(), testName, testID, testDTypes, Uncompressed)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		if err = w.Append(&Chunk{Count: 1, Payload: [][]byte{make([]byte, 100<<10)}}); err != nil {
			break
		}
		if n > 100 {
			t.Fatal("the directory grows without bound")
		}
	}
	if !errors.Is(err, errBudget) {
		t.Error(err)
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
	if names, _ := d.List("c-0"); len(names) != 0 {
		t.Error("left behind:", names)
	}
	// What went makes room.
	write(t, d, testName, testID, chunks(1, 3)[:1], false)
}

func TestANameBelongsToOneCluster(t *testing.T) {
	for name, want := range map[string]string{
		Name("c-0123456789abcdef01234567", "k3", 1, 2, 3, "w4"): "c-0123456789abcdef01234567",
		Name("c", "k", 0, 1, 1, "w"):                            "c",
		"c-1-k-0-1-1-w.tmp":                                     "c-1",
		"c-1-k-0-1-1-w.bad":                                     "c-1",
		// A name of the time before names carried the cluster, and names of others.
		"k-0-1-1-w.seg":                                    "",
		"c-1-k-0-1-1-w.txt":                                "",
		"-k-0-1-1-w.seg":                                   "",
		"../c-1-k-0-1-1-w.seg":                             "",
		Name("c-1-2", "k", 0, 1, 1, "w"):                   "",
		Name("c-1", "k-k", 0, 1, 1, "w"):                   "",
		"c-1-k-0-1-1-w.seg\n":                              "",
		"c-1-" + strings.Repeat("k", 200) + "-0-1-1-w.seg": "",
	} {
		if got := ClusterOf(name); got != want || ValidName(name) != (want != "") {
			t.Errorf("%q belongs to cluster %q, want %q", name, got, want)
		}
	}
	d := open(t, t.TempDir(), 0)
	for _, cluster := range []string{"c-1", "c-12", "c"} {
		write(t, d, Name(cluster, "k", 0, 1, 1, "w"), testID, chunks(1, 1), false)
	}
	for _, cluster := range []string{"c-1", "c-12", "c", "", "other"} {
		want := map[string]int{"c-1": 1, "c-12": 1, "c": 1}[cluster]
		if names, err := d.List(cluster); err != nil || len(names) != want {
			t.Errorf("cluster %q has %v, %v", cluster, names, err)
		}
	}
}

func TestOneNameIsWrittenOnce(t *testing.T) {
	d := open(t, t.TempDir(), 0)
	w, err := d.Create(t.Context(), testName, testID, testDTypes, Uncompressed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(t.Context(), testName, testID, testDTypes, Uncompressed); err == nil {
		t.Error("two write one file")
	}
	if _, err := w.Commit(); err != nil {
		t.Error(err)
	}
}

// D16: the name of a segment is a link or a FIFO.
func TestAFIFOOrALinkUnderTheNameIsNotRead(t *testing.T) {
	path := t.TempDir()
	d, list := open(t, path, 0), chunks(1, 5)
	s := write(t, d, testName, testID, list, false)
	file := filepath.Join(path, testName)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Rename(file, outside); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, file); err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(t, d, s, list); !errors.Is(err, errInvalid) {
		t.Error("a link:", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	makeFIFO(t, file)
	if _, err := readAll(t, d, s, list); !errors.Is(err, errInvalid) {
		t.Error("a FIFO:", err)
	}
}

// D16: a directory that others could have prepared is refused at the start.
func TestAnUnsafeDirectoryIsRefused(t *testing.T) {
	base := t.TempDir()
	real := filepath.Join(base, "real")
	if err := os.Mkdir(real, 0o700); err != nil {
		t.Fatal(err)
	}
	cases := map[string]func(path string) error{
		"a link":               func(p string) error { return os.Symlink(real, p) },
		"a file":               func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"a FIFO":               func(p string) error { makeFIFO(t, p); return nil },
		"writable for all":     func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o777)) },
		"writable, but sticky": func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o777|os.ModeSticky)) },
	}
	if os.Geteuid() == 0 {
		cases["another owner"] = func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chown(p, 12345, 12345)) }
	}
	for what, prepare := range cases {
		path := filepath.Join(base, strings.ReplaceAll(what, " ", "-"))
		if err := prepare(path); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenDir(path, 0); !errors.Is(err, safedir.ErrUnsafe) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := OpenDir(filepath.Join(base, "fresh"), 0); err != nil {
		t.Error("a directory that is not there yet:", err)
	}
	if _, err := OpenDir(filepath.Join(base, "no", "parent"), 0); err == nil {
		t.Error("a directory whose parent is missing was made")
	}
}

func FuzzOpen(f *testing.F) {
	path := f.TempDir()
	d := open(f, path, 0)
	s := write(f, d, testName, testID, chunks(1, 20), true)
	good, err := os.ReadFile(filepath.Join(path, testName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[:64<<10])
	small := write(f, d, "c-0-abab-3-18-1-0123456789abcdef.seg", testID, []Chunk{{Count: 2, Meta: []byte("m"), Payload: [][]byte{[]byte("payload")}}}, false)
	if good, err = os.ReadFile(filepath.Join(path, small.Name)); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		// As if the record had the file's own checksum: nothing but the parser is in the way then.
		forged := s
		forged.Bytes = int64(len(data))
		fs := &oneFile{data}
		if len(data) >= tailBytes {
			tail := data[len(data)-tailBytes:]
			if n := int(uint32(tail[0]) | uint32(tail[1])<<8 | uint32(tail[2])<<16); n <= len(data)-tailBytes {
				footer := data[len(data)-tailBytes-n : len(data)-tailBytes]
				forged.Checksum = checksum(footer)
				for i := range 4 {
					tail[4+i] = byte(forged.Checksum >> (8 * i))
				}
				if parsed, err := parseFooter(footer); err == nil {
					forged.ID, forged.Elements = parsed.ID, parsed.elements
				}
			}
		}
		r, err := New(fs, 0).Open(forged, new(pool).alloc)
		if err != nil {
			return
		}
		for {
			c, err := r.Next()
			if err != nil {
				return
			}
			if c.Size() > maxRatio*len(data) {
				t.Fatalf("a chunk of %d bytes out of %d", c.Size(), len(data))
			}
		}
	})
}
