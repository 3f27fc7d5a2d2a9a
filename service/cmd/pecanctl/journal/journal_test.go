package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/store"
)

// history has the records that a dispatcher writes for a dataset and a job.
func history() []*pecanv1.Record {
	id := &pecanv1.StreamId{JobId: "j", Stream: 1}
	return []*pecanv1.Record{
		{Kind: &pecanv1.Record_Started{Started: &pecanv1.DispatcherStarted{ClusterId: "c-1"}}},
		{Kind: &pecanv1.Record_DatasetAdded{DatasetAdded: &pecanv1.DatasetAdded{Dataset: &pecanv1.StoredDataset{DatasetId: "d", Fingerprint: "f"}}}},
		{Kind: &pecanv1.Record_ClientJoined{ClientJoined: &pecanv1.ClientJoined{ClientId: "trainer"}}},
		{Kind: &pecanv1.Record_JobCreated{JobCreated: &pecanv1.JobCreated{JobId: "j", DatasetId: "d", Plan: &pecanv1.Plan{NumStreams: 2}}}},
		{Kind: &pecanv1.Record_JobJoined{JobJoined: &pecanv1.JobJoined{JobId: "j", ClientId: "trainer"}}},
		{Kind: &pecanv1.Record_EpochOpened{EpochOpened: &pecanv1.EpochOpened{JobId: "j", Streams: 2}}},
		{Kind: &pecanv1.Record_LeaseGranted{LeaseGranted: &pecanv1.LeaseGranted{Id: id, Lease: 1, Worker: &pecanv1.WorkerAddress{WorkerId: "w"}}}},
	}
}

// work makes a work directory of records, with a snapshot after the first of them.
func work(t *testing.T, records []*pecanv1.Record, snapshot int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "work")
	s, err := store.Open(store.Options{Dir: dir})
	if err == nil {
		err = errors.Join(s.PutGraph("f", []byte("a graph")), s.PutGraph("left over", []byte("another")))
	}
	state := durable.NewState()
	for i, record := range records {
		if err != nil {
			t.Fatal(err)
		}
		if i == snapshot && snapshot > 0 {
			var data []byte
			if data, err = state.Marshal(); err == nil {
				err = s.Compact(data)
			}
		}
		data, wrong := proto.Marshal(record)
		if wrong == nil {
			wrong = s.Append([][]byte{data})
		}
		err = errors.Join(err, wrong)
		// Some tests write a record that does not fit.
		_ = state.Apply(record)
	}
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func ask(t *testing.T, o Options, words ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := Run(t.Context(), o, words, &out)
	return out.String(), err
}

// stamps returns the modification times and contents of a directory's files.
func stamps(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&all, entry.Name(), info.Size(), info.ModTime().UnixNano(), info.Mode())
	}
	return all.String()
}

func TestCheckOfAnIntactStoreCountsAndChangesNothing(t *testing.T) {
	for name, snapshot := range map[string]int{"records": 0, "a snapshot and records": 4} {
		t.Run(name, func(t *testing.T) {
			dir := work(t, history(), snapshot)
			before := stamps(t, dir)
			text, err := ask(t, Options{}, "check", dir)
			for _, want := range []string{
				dir + " is intact", "cluster   c-1, started 1 times", fmt.Sprintf("snapshot  of %d records", snapshot),
				fmt.Sprintf("records   %d after it, the last is 7; acknowledged up to 7", 7-snapshot),
				"1 datasets, 1 clients, 1 jobs, 1 open epochs with 2 streams", "graphs    2, 14 bytes; 1 belong to no dataset",
			} {
				if err != nil || !strings.Contains(text, want) {
					t.Errorf("lacks %q: %v\n%s", want, err, text)
				}
			}
			found := report{}
			text, err = ask(t, Options{JSON: true}, "check", dir)
			if err != nil || json.Unmarshal([]byte(text), &found) != nil || found.Last != 7 || len(found.Problems) != 0 {
				t.Errorf("%v %s", err, text)
			}
			if _, err := ask(t, Options{}, "inspect", dir); err != nil {
				t.Error(err)
			}
			if after := stamps(t, dir); after != before {
				t.Errorf("the directory was changed from\n%s to\n%s", before, after)
			}
		})
	}
}

func TestCheckReportsTheLocationOfDamage(t *testing.T) {
	late := &pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: &pecanv1.LeaseLost{Id: &pecanv1.StreamId{JobId: "nobody's"}}}}
	for name, c := range map[string]struct {
		records []*pecanv1.Record
		damage  func(t *testing.T, dir string)
		want    string
	}{
		"a record that does not fit": {append(history(), late), func(*testing.T, string) {}, `record 8: apply record 8`},
		"a graph is missing": {append(history(), &pecanv1.Record{Kind: &pecanv1.Record_DatasetAdded{DatasetAdded: &pecanv1.DatasetAdded{
			Dataset: &pecanv1.StoredDataset{DatasetId: "bare", Fingerprint: "gone"}}}}), func(*testing.T, string) {}, "dataset bare: its graph gone is missing"},
		"the log is cut": {history(), func(t *testing.T, dir string) {
			log := newest(t, dir)
			data, _ := os.ReadFile(log)
			if err := os.WriteFile(log, data[:len(data)-30], 0o600); err != nil {
				t.Fatal(err)
			}
		}, "records up to 7 were acknowledged, but the last readable record is 6"},
		"the mark is missing": {history(), func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "PECAN-MARK")); err != nil {
				t.Fatal(err)
			}
		}, "PECAN-MARK is missing"},
		"the last record is wrong": {history(), func(t *testing.T, dir string) {
			log := newest(t, dir)
			data, _ := os.ReadFile(log)
			data[len(data)-20] ^= 1
			if err := os.WriteFile(log, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "is complete, but its checksum is wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := work(t, c.records, 0)
			c.damage(t, dir)
			for _, o := range []Options{{}, {JSON: true}} {
				text, err := ask(t, o, "check", dir)
				var unchecked Unchecked
				if err == nil || errors.As(err, &unchecked) || !strings.Contains(err.Error(), "is damaged") {
					t.Fatalf("got %v", err)
				}
				if !strings.Contains(text, c.want) {
					t.Errorf("lacks %q:\n%s", c.want, text)
				}
			}
		})
	}
}

// Scripts that read JSON get an object, whatever is wrong.
func TestCheckReportsAnUnreadableStoreAsJSON(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"damaged": func(t *testing.T, dir string) {
			manifests, err := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
			if err != nil || len(manifests) == 0 {
				t.Fatal(manifests, err)
			}
			for _, file := range manifests {
				if err := os.WriteFile(file, []byte("none"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		},
		"missing": func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := work(t, history(), 0)
			damage(t, dir)
			text, err := ask(t, Options{JSON: true}, "check", dir)
			var unchecked Unchecked
			if err == nil || errors.As(err, &unchecked) != (name == "missing") {
				t.Fatalf("got %v", err)
			}
			var found report
			if err := json.Unmarshal([]byte(text), &found); err != nil || !found.Unread || len(found.Problems) != 1 {
				t.Errorf("got %v:\n%s", err, text)
			}
		})
	}
}

// D2: an incomplete write or a bad disk leaves one of the two slots invalid. The check reports it, and the store stays usable.
func TestCheckReportsAnInvalidSlotOfTheMark(t *testing.T) {
	for place := range 2 {
		dir := work(t, history(), 0)
		mark := filepath.Join(dir, "PECAN-MARK")
		data, err := os.ReadFile(mark)
		if err != nil {
			t.Fatal(err)
		}
		data[4096*place+9] ^= 4
		if err := os.WriteFile(mark, data, 0o600); err != nil {
			t.Fatal(err)
		}
		text, err := ask(t, Options{}, "check", dir)
		if err != nil || !strings.Contains(text, "is intact") || !strings.Contains(text, "one of its two slots is invalid") {
			t.Errorf("place %d: %v\n%s", place, err, text)
		}
		if text, err := ask(t, Options{JSON: true}, "check", dir); err != nil || !strings.Contains(text, `"invalid_slot": true`) {
			t.Errorf("place %d: %v\n%s", place, err, text)
		}
		var logged bytes.Buffer
		s, err := store.Open(store.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&logged, nil))})
		if err != nil || !strings.Contains(logged.String(), "is invalid: a write was torn") {
			t.Fatalf("place %d: %v %s", place, err, &logged)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func newest(t *testing.T, dir string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	return logs[len(logs)-1]
}

func TestInspectShowsARangeOfRecords(t *testing.T) {
	dir := work(t, history(), 3)
	text, err := ask(t, Options{}, "inspect", dir)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if err != nil || len(lines) != 5 || !strings.HasPrefix(lines[0], `3  snapshot  {"applied":"3"`) ||
		lines[4] != `7  lease_granted  {"id":{"job_id":"j","stream":1},"lease":"1","worker":{"worker_id":"w"}}` {
		t.Fatalf("%v\n%s", err, text)
	}
	for want, o := range map[string]Options{
		"5 6 7": {From: 5}, "3 4 5": {To: 5}, "6": {From: 6, To: 6}, "3 4 5 ": {Limit: 2}, "5": {From: 5, Limit: 1},
	} {
		o.JSON = true
		text, err := ask(t, o, "inspect", dir)
		var numbers []string
		for line := range strings.Lines(text) {
			e := entry{}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			numbers = append(numbers, fmt.Sprint(e.Number))
		}
		if err != nil || strings.Join(numbers, " ") != strings.TrimSpace(want) {
			t.Errorf("%+v: %q (%v), want %q", o, numbers, err, want)
		}
	}
}

func TestInvalidArgumentsAreNotReportedAsDamage(t *testing.T) {
	empty, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o     Options
		words []string
		want  string
	}{
		"nothing":             {Options{}, nil, "want store check DIR"},
		"another word":        {Options{}, []string{"repair", empty}, "want store check DIR"},
		"no directory":        {Options{}, []string{"check"}, "want store check DIR"},
		"one that is missing": {Options{}, []string{"check", filepath.Join(empty, "no")}, "no such file"},
		"a file":              {Options{}, []string{"check", file}, "not a directory"},
		"an empty one":        {Options{}, []string{"inspect", empty}, "the directory has no store"},
		"a range backwards":   {Options{From: 5, To: 4}, []string{"inspect", empty}, "--from 5 is greater than --to 4"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ask(t, c.o, c.words...)
			var unchecked Unchecked
			if !errors.As(err, &unchecked) || unchecked.ExitCode() != 2 || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
	if names, err := os.ReadDir(empty); err != nil || len(names) > 0 {
		t.Fatalf("looking made %v (%v)", names, err)
	}
}

// FuzzRecord: every record is shown, or reported as unknown.
func FuzzRecord(f *testing.F) {
	for _, record := range history() {
		data, err := proto.Marshal(record)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e := decodeRecord(1, data)
		if (e.Value == nil) == (e.Wrong == "") {
			t.Fatalf("%q is %+v", data, e)
		}
		for _, asJSON := range []bool{false, true} {
			var out bytes.Buffer
			if err := (&printer{o: Options{JSON: asJSON}, out: &out}).print(e); err != nil || bytes.Count(out.Bytes(), []byte("\n")) != 1 {
				t.Fatalf("printed %q: %v", out.String(), err)
			}
		}
	})
}
