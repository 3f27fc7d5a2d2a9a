package cache

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// dropped makes a file durable, and takes it out of the page cache.
func dropped(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd := int(file.Fd())
	if err := errors.Join(file.Sync(), unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if !local(fd) || paged(fd, info.Size()) {
		t.Skip("the directory of temporary files is on no local file system whose page cache Linux describes")
	}
}

// wasDirect opens a segment, reads it, and returns whether its reads were direct.
func wasDirect(t *testing.T, d *Dir, s Segment, list []Chunk) bool {
	t.Helper()
	memory := new(pool)
	r, err := d.Open(s, memory.alloc)
	if err != nil {
		t.Fatal(err)
	}
	is := r.file.isDirect()
	for i := range list {
		if c, err := r.Next(); err != nil || !bytes.Equal(whole(&c), whole(&list[i])) || c.Count != list[i].Count {
			t.Fatalf("direct %v: chunk %d of %d is another one: %v", is, i, len(list), err)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("direct %v: %v after the last chunk", is, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	memory.check(t, "after the end", 0)
	return is
}

func TestColdSegmentsAreReadDirectlyUntilTheyMayStayInMemory(t *testing.T) {
	for _, compress := range []bool{false, true} {
		path, list := t.TempDir(), chunks(7, 60)
		d := open(t, path, 0)
		s := write(t, d, testName, testID, list, compress)
		file := filepath.Join(path, testName)
		if wasDirect(t, d, s, list) {
			t.Error("a segment in the page cache is read from the medium")
		}
		dropped(t, file)
		for i, want := range []bool{true, false, false} {
			// The second read leaves the pages in the page cache, and the third one reads them there.
			if is := wasDirect(t, d, s, list); is != want {
				t.Errorf("compress %v, read %d: direct %v", compress, i, is)
			}
		}
		for range 3 {
			dropped(t, file)
			if !wasDirect(t, d, s, list) {
				t.Error("a segment whose pages have left the page cache is read into it again")
			}
		}
	}
}

func TestSmallFilesAreNotReadDirectly(t *testing.T) {
	path, list := t.TempDir(), []Chunk{{Count: 1, Meta: []byte("m"), Payload: [][]byte{make([]byte, leastDirect/2)}}}
	d := open(t, path, 0)
	s := write(t, d, testName, testID, list, false)
	dropped(t, filepath.Join(path, testName))
	if wasDirect(t, d, s, list) {
		t.Error("a small segment is read directly")
	}
}

// D11: the reads of cold segments find damage too, and a file that was truncated while it is read.
func TestDamageIsFoundByDirectReads(t *testing.T) {
	path, list := t.TempDir(), chunks(11, 60)
	s := write(t, open(t, path, 0), testName, testID, list, false)
	file := filepath.Join(path, testName)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(2, 3))
	for i := range 18 {
		bad, cut := bytes.Clone(good), int64(len(good))
		if at := random.IntN(len(good)); i%3 > 0 {
			bad[at] ^= 1 << random.IntN(8)
		} else {
			cut = int64(at)
		}
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		dropped(t, file)
		memory := new(pool)
		r, err := open(t, path, 0).Open(s, memory.alloc)
		if err == nil {
			if !r.file.isDirect() {
				t.Fatal("the segment is not read directly")
			}
			if err = os.Truncate(file, cut); err != nil {
				t.Fatal(err)
			}
			for n := 0; err == nil; n++ {
				var c Chunk
				if c, err = r.Next(); err == nil && !bytes.Equal(whole(&c), whole(&list[n])) {
					t.Fatalf("damage %d: chunk %d is not the one that was written", i, n)
				}
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		// What was read before the file was cut may be all of it.
		if !errors.Is(err, errInvalid) && (cut == int64(len(good)) || !errors.Is(err, io.EOF)) {
			t.Errorf("damage %d: %v", i, err)
		}
		memory.check(t, "after damage", 0)
	}
}

func TestAReaderThatIsClosedReleasesWhatItReadsAhead(t *testing.T) {
	path, list := t.TempDir(), chunks(13, 60)
	d := open(t, path, 0)
	s := write(t, d, testName, testID, list, false)
	for n := range 5 {
		dropped(t, filepath.Join(path, testName))
		d.fs.fs.(*disk).read = history{}
		memory := new(pool)
		r, err := d.Open(s, memory.alloc)
		if err != nil {
			t.Fatal(err)
		}
		if !r.file.isDirect() {
			t.Fatal("the segment is not read directly")
		}
		for range n {
			if _, err := r.Next(); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		memory.check(t, "after closing", 0)
	}
}

func TestLargeBlocksAreReadAheadOneAtATime(t *testing.T) {
	for size, ahead := range map[int]int{blockBytes: mostAhead, 3 * blockBytes: 1} {
		path := t.TempDir()
		d := open(t, path, 0)
		var list []Chunk
		for range 8 {
			list = append(list, Chunk{Count: 1, Meta: []byte("m"), Payload: [][]byte{make([]byte, size)}})
		}
		s := write(t, d, testName, testID, list, false)
		dropped(t, filepath.Join(path, testName))
		memory := new(pool)
		r, err := d.Open(s, memory.alloc)
		if err != nil {
			t.Fatal(err)
		}
		if !r.file.isDirect() || r.begun != ahead {
			t.Errorf("%d bytes: direct %v, %d blocks are read at once", size, r.file.isDirect(), r.begun)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		memory.check(t, "after closing", 0)
	}
}

// A medium may refuse direct reads, for example because its blocks are larger than directAlign.
func TestARefusedDirectReadUsesThePageCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	content := make([]byte, leastDirect+777)
	for i := range content {
		content[i] = byte(i >> 3)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	dropped(t, path)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := setDirect(int(file.Fd()), true); err != nil {
		t.Fatal(err)
	}
	f := &direct{file, int64(len(content))}
	// An address that is no multiple of a sector is refused as such a medium refuses it.
	memory := alignedTo(make([]byte, len(content)+2*directAlign), len(content)+directAlign)[1:]
	if n, err := f.ReadAt(memory, 0); n != len(content) || !errors.Is(err, io.EOF) || !bytes.Equal(memory[:n], content) {
		t.Errorf("%d of %d bytes: %v", n, len(content), err)
	}
}
