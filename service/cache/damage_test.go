package cache

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// damage is a way to damage a file.
type damage struct {
	name string
	do   func(data []byte) []byte
}

func damages(size int) []damage {
	flip := func(at int) damage {
		return damage{fmt.Sprintf("flip a bit of byte %d", at), func(d []byte) []byte { d[at] ^= 1 << (at % 8); return d }}
	}
	out := []damage{
		{"delete all bytes", func(d []byte) []byte { return nil }},
		{"append a byte", func(d []byte) []byte { return append(d, 0) }},
		{"append a copy", func(d []byte) []byte { return append(d, d...) }},
		{"cut the last byte", func(d []byte) []byte { return d[:len(d)-1] }},
		{"cut the tail", func(d []byte) []byte { return d[:len(d)-tailBytes] }},
		{"cut half", func(d []byte) []byte { return d[:len(d)/2] }},
		{"zero everything", func(d []byte) []byte { clear(d); return d }},
		{"zero a sector in the middle", func(d []byte) []byte { clear(d[len(d)/2 : min(len(d), len(d)/2+512)]); return d }},
		{"zero the footer", func(d []byte) []byte { clear(d[len(d)-200 : len(d)-tailBytes]); return d }},
		{"swap two sectors", func(d []byte) []byte {
			a, b := d[1024:1536], d[4096:4608]
			copied := bytes.Clone(a)
			copy(a, b)
			copy(b, copied)
			return d
		}},
		{"a byte less at the front, one more at the end", func(d []byte) []byte { return append(d[1:], 0) }},
	}
	for at := 0; at < size; at += max(1, size/300) {
		out = append(out, flip(at))
	}
	for at := max(0, size-300); at < size; at++ {
		out = append(out, flip(at))
	}
	return out
}

// D11: a segment is damaged in every way and place. Elements read before the error are right. Damage goes unnoticed only if it changed no element.
func TestDamageIsNeverReturnedAsElements(t *testing.T) {
	for _, compress := range []bool{false, true} {
		path := t.TempDir()
		d := open(t, path, 0)
		var list []Chunk
		random := rand.New(rand.NewPCG(5, 5))
		for i := range 40 {
			payload := make([]byte, 300)
			for j := range payload {
				payload[j] = byte(random.IntN(2 + 254*(i%2)))
			}
			list = append(list, Chunk{Count: 1, Flags: uint32(i), Meta: []byte("meta"), Payload: [][]byte{payload}})
		}
		s := write(t, d, testName, testID, list, compress)
		file := filepath.Join(path, testName)
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, hurt := range damages(len(good)) {
			if err := os.WriteFile(file, hurt.do(bytes.Clone(good)), 0o600); err != nil {
				t.Fatal(err)
			}
			if n, err := readAll(t, d, s, list); !errors.Is(err, errInvalid) {
				t.Errorf("compress=%v, %s: read %d chunks, %v", compress, hurt.name, n, err)
			}
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(t, d, s, list); !errors.Is(err, errInvalid) {
			t.Errorf("a missing file: %v", err)
		}
	}
}

// D11: a file is truncated while it is read. The reader's error differs from the end of the elements.
func TestASegmentTruncatedDuringReadingHasNoEnd(t *testing.T) {
	path := t.TempDir()
	d := open(t, path, 0)
	var list []Chunk
	for i := range 12 {
		list = append(list, Chunk{Count: 1, Flags: uint32(i), Meta: []byte("m"), Payload: [][]byte{make([]byte, blockBytes/4)}})
	}
	s := write(t, d, testName, testID, list, false)
	for at := int64(0); at < s.Bytes; at += blockBytes / 3 {
		again := write(t, d, fmt.Sprintf("c-0-abab-3-%d-1-0123456789abcdef.seg", 100+at), testID, list, false)
		r, err := d.Open(again, new(pool).alloc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(path, again.Name), at); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, errInvalid) || errors.Is(err, io.EOF) {
			t.Errorf("cut at byte %d of %d: %v", at, s.Bytes, err)
		}
		r.Close()
	}
}

// D11: a segment of another part, dataset or source under the name.
func TestAnotherSegmentIsNotAccepted(t *testing.T) {
	path := t.TempDir()
	d, list := open(t, path, 0), chunks(1, 5)
	s := write(t, d, testName, testID, list, false)
	others := map[string]ID{
		"another key": {strings.Repeat("cd", 32), 3, 8, "a digest"}, "another part": {testID.Key, 4, 8, "a digest"},
		"another division": {testID.Key, 3, 9, "a digest"}, "other files": {testID.Key, 3, 8, "b digest"},
	}
	for what, id := range others {
		other := write(t, d, "c-0-ffff-3-17-1-0123456789abcdef.seg", id, list, false)
		if err := os.Rename(filepath.Join(path, other.Name), filepath.Join(path, testName)); err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(t, d, s, list); !errors.Is(err, errInvalid) {
			t.Errorf("%s: %v", what, err)
		}
		// Also when the record is wrong and names the other one's checksum.
		forged := s
		forged.Checksum, forged.Bytes = other.Checksum, other.Bytes
		if _, err := readAll(t, d, forged, list); !errors.Is(err, errInvalid) {
			t.Errorf("%s, and its checksum: %v", what, err)
		}
	}
}

// D11: TestAnInvalidRecordIsRefused changes what the caller says of the segment.
func TestAnInvalidRecordIsRefused(t *testing.T) {
	d, list := open(t, t.TempDir(), 0), chunks(1, 5)
	s := write(t, d, testName, testID, list, false)
	for what, change := range map[string]func(*Segment){
		"size": func(s *Segment) { s.Bytes++ }, "checksum": func(s *Segment) { s.Checksum++ }, "elements": func(s *Segment) { s.Elements++ },
		"key": func(s *Segment) { s.Key = "x" }, "part": func(s *Segment) { s.Part++ }, "source": func(s *Segment) { s.Source = "" },
		"a missing file": func(s *Segment) { s.Name = "c-0-abab-3-99-1-0123456789abcdef.seg" }, "a path": func(s *Segment) { s.Name = "../" + s.Name },
		"no name": func(s *Segment) { s.Name = "" },
	} {
		wrong := s
		change(&wrong)
		if _, err := readAll(t, d, wrong, list); !errors.Is(err, errInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAQuarantinedSegmentIsNotRead(t *testing.T) {
	d, list := open(t, t.TempDir(), 0), chunks(1, 5)
	s := write(t, d, testName, testID, list, false)
	if err := d.Quarantine(testName); err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(t, d, s, list); !errors.Is(err, errInvalid) {
		t.Error(err)
	}
	names, err := d.List("c-0")
	if err != nil || len(names) != 1 || !strings.HasSuffix(names[0], invalidSuffix) {
		t.Error(names, err)
	}
}
