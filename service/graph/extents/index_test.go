package extents_test

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pecan-ml/pecan/service/graph/extents"
)

func TestAnIndexHasTheOffsetOfEveryNthRecord(t *testing.T) {
	for _, n := range []int{0, 1, 2, 7, 8, 9, 100, 257} {
		data, offsets := recordFile(mixedLengths(n)...)
		for _, most := range []int{2, 8, 1000} {
			x, err := extents.ReadIndex(t.Context(), write(t, data), extents.Whole, most)
			if err != nil {
				t.Fatal(err)
			}
			var want []int64
			for i := 0; i < n; i += int(x.Every) {
				want = append(want, offsets[i])
			}
			if x.Records != int64(n) || len(x.Offsets) > most || !slices.Equal(x.Offsets, want) {
				t.Errorf("%d records, at most %d offsets: %+v, want %v", n, most, x, want)
			}
			if x.Every > 1 && 2*n/int(x.Every) < most {
				t.Errorf("%d records, at most %d offsets: only one of %d is kept", n, most, x.Every)
			}
		}
	}
}

func TestAnIndexOfARangeStartsAtItsFirstRecord(t *testing.T) {
	data, offsets := recordFile(mixedLengths(100)...)
	name := write(t, data)
	for _, c := range []struct {
		used  extents.Range
		count int64
	}{
		{extents.Range{From: 0, To: 1}, 1},
		{extents.Range{From: 13, To: 70}, 57},
		{extents.Range{From: 99, To: 1000}, 1},
		{extents.Range{From: 100, To: 1000}, 0},
		{extents.Range{From: 5, To: 5}, 0},
		{extents.Range{From: 9, To: 5}, 0},
	} {
		x, err := extents.ReadIndex(t.Context(), name, c.used, 8)
		if err != nil {
			t.Fatal(err)
		}
		var want []int64
		for i := c.used.From; i < c.used.From+c.count; i += x.Every {
			want = append(want, offsets[i])
		}
		if x.Records != c.count || !slices.Equal(x.Offsets, want) {
			t.Errorf("%+v: %+v, want %d records at %v", c.used, x, c.count, want)
		}
	}
}

func TestASampleHasTheRecordsThatBeginInTheFirstBytes(t *testing.T) {
	data, offsets := recordFile(mixedLengths(100)...)
	name := write(t, data)
	for _, c := range []struct{ first, records, size int64 }{
		{0, 0, 0},
		{1, 1, offsets[1]},
		{offsets[40], 40, offsets[40]},
		{offsets[40] + 1, 41, offsets[41]},
		{1 << 40, 100, int64(len(data))},
	} {
		records, size, err := extents.SampleRecords(name, c.first)
		if err != nil || records != c.records || size != c.size {
			t.Errorf("the first %d bytes: %d records with %d bytes, %v; want %d with %d", c.first, records, size, err, c.records, c.size)
		}
	}
	changed := slices.Clone(data)
	changed[offsets[30]+1] ^= 1
	damaged := write(t, changed)
	if records, _, err := extents.SampleRecords(damaged, offsets[30]); err != nil || records != 30 {
		t.Errorf("before the damaged record: %d records, %v", records, err)
	}
	for what, path := range map[string]string{
		"a damaged file": damaged, "another format": write(t, bytes.Repeat([]byte("text\n"), 100)), "a directory": t.TempDir(), "a missing file": name + "x",
	} {
		if records, size, err := extents.SampleRecords(path, 1<<20); err == nil {
			t.Errorf("%s: %d records with %d bytes", what, records, size)
		}
	}
	if records, size, err := extents.SampleRecords(write(t, nil), 1<<20); err != nil || records != 0 || size != 0 {
		t.Errorf("an empty file: %d records with %d bytes, %v", records, size, err)
	}
}

func TestDamagedFilesHaveNoIndex(t *testing.T) {
	data, offsets := recordFile(mixedLengths(50)...)
	damaged := slices.Clone(data)
	damaged[offsets[30]+1] ^= 1
	for name, path := range map[string]string{
		"a truncated file":    write(t, data[:len(data)-1]),
		"a truncated header":  write(t, data[:offsets[20]+5]),
		"a changed length":    write(t, damaged),
		"another format":      write(t, bytes.Repeat([]byte("text\n"), 100)),
		"a directory":         t.TempDir(),
		"a file that is gone": filepath.Join(t.TempDir(), "file"),
	} {
		if x, err := extents.ReadIndex(t.Context(), path, extents.Whole, 100); err == nil {
			t.Errorf("%s has an index: %+v", name, x)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := extents.ReadIndex(ended, write(t, data), extents.Whole, 100); err == nil {
		t.Error("an index is read after its context has ended")
	}
}
