package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/pecan-ml/pecan/service/store"
)

// tornStore writes a store of ten records. It returns the files now, the files before the last three records, and the name
// of the log. It also returns the offsets in the log before and after each of those three.
func tornStore(t *testing.T) (now, before files, log string, ends []int) {
	t.Helper()
	fsys := vfs.NewMem()
	s := open(t, store.Options{Dir: workDir, FS: fsys})
	for i := range 10 {
		if i == 7 {
			before = readFiles(t, fsys)
			log = before.matching(t, "*.log")
			ends = append(ends, len(before[log]))
		}
		appendAll(t, s, fmt.Sprint("record ", i+1, strings.Repeat("y", 11*i)))
		if now = readFiles(t, fsys); i >= 7 {
			ends = append(ends, len(now[log]))
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return now, before, log, ends
}

// reopen opens a store, and returns its records, the number of torn tails that it found, and its log messages.
func reopen(t *testing.T, fsys vfs.FS) (records []string, torn int, logged string) {
	t.Helper()
	var text bytes.Buffer
	s := open(t, store.Options{Dir: workDir, FS: fsys, Log: slog.New(slog.NewTextHandler(&text, nil))})
	defer s.Close()
	_, records = contents(t, s)
	return records, s.Metrics().TornTails, text.String()
}

// D1: the log is truncated at every byte of its last three records, which were not acknowledged. Complete records
// remain. The store ignores a torn record once, and keeps a copy of it.
func TestD1ATornTailIsIgnoredAtEveryByte(t *testing.T) {
	now, before, log, ends := tornStore(t)
	for cut := ends[0]; cut <= ends[3]; cut++ {
		whole := 7
		for _, end := range ends[1:] {
			if cut >= end {
				whole++
			}
		}
		partial := !slices.Contains(ends, cut)
		fsys := now.with(log, now[log][:cut]).with("PECAN-MARK", before["PECAN-MARK"]).disk(t)
		records, torn, logged := reopen(t, fsys)
		if len(records) != whole {
			t.Fatalf("cut at %d of %v: %d records, want %d", cut, ends, len(records), whole)
		}
		if partial != (torn == 1) || partial != strings.Contains(logged, "torn and was never acknowledged") {
			t.Fatalf("cut at %d of %v: %d torn tails, logged %q", cut, ends, torn, logged)
		}
		if kept, ok := readFiles(t, fsys)["PECAN-TORN"]; ok != partial || !bytes.HasPrefix(now[log][ends[whole-7]:], kept) || partial && len(kept) == 0 {
			t.Fatalf("cut at %d: the copy has %d bytes", cut, len(kept))
		}
		if again, torn, logged := reopen(t, fsys); len(again) != whole || torn != 0 || strings.Contains(logged, "torn") {
			t.Fatalf("cut at %d, opened again: %d records, %d torn tails, logged %q", cut, len(again), torn, logged)
		}
	}
}

// D1: the log is truncated in the same way, but the records were acknowledged. That is damage and not a torn write.
func TestD1AcknowledgedRecordsAreNeverIgnored(t *testing.T) {
	now, _, log, ends := tornStore(t)
	for cut := ends[0]; cut < ends[3]; cut++ {
		damaged := now.with(log, now[log][:cut])
		_, err := store.Open(store.Options{Dir: workDir, FS: damaged.disk(t)})
		if !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), log) || !strings.Contains(err.Error(), "records up to 10 were acknowledged") {
			t.Fatalf("cut at %d of %v: %v", cut, ends, err)
		}
	}
}

// D1, D2: after a power failure the mark may be older than the log. Even then a complete record with a wrong checksum is
// damage. A record with a sector that never reached the disk is torn.
func TestD1ACompleteRecordWithAWrongChecksumIsDamage(t *testing.T) {
	now, before, log, ends := tornStore(t)
	old := now.with("PECAN-MARK", before["PECAN-MARK"])
	for at := ends[2] + 11; at < ends[3]; at++ {
		data := bytes.Clone(now[log])
		data[at] ^= 0x10
		_, err := store.Open(store.Options{Dir: workDir, FS: old.with(log, data).disk(t)})
		if !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), fmt.Sprintf("offset %d is complete", ends[2])) || !strings.Contains(err.Error(), log) {
			t.Fatalf("byte %d of the last record, %d to %d: %v", at, ends[2], ends[3], err)
		}
	}
	data := bytes.Clone(now[log])
	clear(data[ends[2]+30:])
	if records, torn, _ := reopen(t, old.with(log, data).disk(t)); len(records) != 9 || torn != 1 {
		t.Fatalf("a last record whose end is zero: %d records, %d torn tails", len(records), torn)
	}
}

// D1: the zeros that pebble allocates in advance and the trailer of a closed log are not a torn tail.
func TestD1ACleanEndIsNotATornTail(t *testing.T) {
	now, _, log, _ := tornStore(t)
	for name, data := range map[string][]byte{
		"the end":      now[log],
		"zeros":        append(bytes.Clone(now[log]), make([]byte, 5000)...),
		"a full block": append(bytes.Clone(now[log]), make([]byte, 100_000)...),
		"a trailer":    append(bytes.Clone(now[log]), 0, 0, 0, 0, 0, 0, 5, logNumber(t, log)+1, 0, 0, 0),
	} {
		if records, torn, _ := reopen(t, now.with(log, data).disk(t)); len(records) != 10 || torn != 0 {
			t.Errorf("%s: %d records, %d torn tails", name, len(records), torn)
		}
	}
}

func logNumber(t *testing.T, log string) byte {
	t.Helper()
	var n byte
	if _, err := fmt.Sscanf(log, "%06d.log", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// D3: sectors are zero, records have another order, files are missing, doubled or older.
func TestD3ReorderedAndMissingDataIsRefused(t *testing.T) {
	now, before, log, ends := tornStore(t)
	tables, wantTables := filled(t, 3000, true)
	want := content{graphs: map[string]string{}}
	for i := range 10 {
		want.records = append(want.records, fmt.Sprint("record ", i+1, strings.Repeat("y", 11*i)))
	}
	zeroed := func(data []byte, from, n int) []byte {
		data = bytes.Clone(data)
		clear(data[from:min(from+n, len(data))])
		return data
	}
	sst := tables.matching(t, "*.sst")
	for name, c := range map[string]struct {
		damaged files
		// harmless allows the opening to succeed if the content is unchanged.
		harmless bool
		want     content
	}{
		"a zero sector in the log":        {now.with(log, zeroed(now[log], 512, 512)), false, want},
		"zeros at the end of the log":     {now.with(log, zeroed(now[log], ends[1], 4096)), false, want},
		"a zero sector in a table":        {tables.with(sst, zeroed(tables[sst], len(tables[sst])/2, 512)), false, wantTables},
		"a zero page in a table":          {tables.with(sst, zeroed(tables[sst], len(tables[sst])/3, 4096)), false, wantTables},
		"no table":                        {tables.with(sst, nil), false, wantTables},
		"two records in the other order":  {now.with(log, slices.Concat(now[log][:ends[1]], now[log][ends[2]:ends[3]], now[log][ends[1]:ends[2]])), true, want},
		"a record twice":                  {now.with(log, slices.Concat(now[log][:ends[3]], now[log][ends[2]:ends[3]])), true, want},
		"a record left out":               {now.with(log, slices.Concat(now[log][:ends[1]], now[log][ends[2]:ends[3]])), false, want},
		"the log once more, as a newer":   {now.with("000099.log", now[log]), true, want},
		"an older log from a backup":      {now.with(log, before[log]), false, want},
		"a log and a mark from a backup":  {tables.with("PECAN-MARK", before["PECAN-MARK"]), true, wantTables},
		"a table of another store":        {tables.with(sst, bytes.Repeat([]byte("no table"), 1000)), false, wantTables},
		"a log of another store":          {tables.with(tables.matching(t, "*.log"), now[log]), false, wantTables},
		"a table that is longer than was": {tables.with(sst, append(bytes.Clone(tables[sst]), make([]byte, 512)...)), true, wantTables},
	} {
		t.Run(name, func(t *testing.T) {
			names := graphNames
			if len(c.want.graphs) == 0 {
				names = nil
			}
			got, err := readAll(t, c.damaged.disk(t), names)
			if err != nil && (!errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), workDir)) {
				t.Fatalf("got %v", err)
			}
			if err == nil && (!c.harmless || got.String() != c.want.String()) {
				t.Fatalf("opened with the content %v", got)
			}
			t.Logf("refused: %v", err)
		})
	}
}
