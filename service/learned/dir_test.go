package learned

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const graph = "0123456789abcdef"

// open opens a directory, and returns it with its log.
func open(t *testing.T, path string) (*Dir, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	check := func(l *pecanv1.Learned) error {
		if len(l.Graphs()) == 0 {
			return errors.New("nothing was learned")
		}
		return nil
	}
	d, err := Open(path, check, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, &log
}

func ordered(fingerprint, plan string, stage pecanv1.OrderStage) *pecanv1.Learned {
	return &pecanv1.Learned{Orders: []*pecanv1.StoredOrder{{Fingerprint: fingerprint, PlanHash: plan, Order: []string{"b", "a"}, Stage: stage}}}
}

func TestASecondProcessReadsWhatTheFirstKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "home", "pecan", "learned")
	first, _ := open(t, path)
	if found := first.Load(graph); found != nil {
		t.Errorf("an empty directory has %v", found)
	}
	first.Save(graph, ordered(graph, "h1", 0))
	second, log := open(t, path)
	if found := second.Load(graph); !proto.Equal(found, ordered(graph, "h1", 0)) {
		t.Errorf("found %v", found)
	}
	if found := second.Load("0123456789abcdee"); found != nil {
		t.Errorf("of another graph it has %v", found)
	}
	// Names lead nowhere else.
	second.Save("../"+graph, ordered("../"+graph, "h1", 0))
	if found := second.Load("../" + graph); found != nil || log.Len() > 0 {
		t.Errorf("found %v, log %s", found, log)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("others may read the directory: %v %v", info, err)
	}
}

// The later rename wins, after it has merged what the earlier one kept.
func TestTwoProcessesKeepWhatBothFound(t *testing.T) {
	path := t.TempDir()
	a, _ := open(t, path)
	b, _ := open(t, path)
	a.Save(graph, ordered(graph, "h1", pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK))
	b.Save(graph, pecanv1.MergeLearned(ordered(graph, "h1", 0), ordered(graph, "h2", 0)))
	want := pecanv1.MergeLearned(ordered(graph, "h1", pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK), ordered(graph, "h2", 0))
	if found := a.Load(graph); !proto.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
	// At any moment a reader finds a complete file.
	var writers sync.WaitGroup
	for n, d := range []*Dir{a, b} {
		writers.Go(func() {
			for k := range 20 {
				d.Save(graph, ordered(graph, fmt.Sprintf("p%d-%d", n, k), 0))
			}
		})
	}
	reader, log := open(t, path)
	for range 200 {
		if reader.Load(graph) == nil {
			t.Error("a reader found no complete file")
			break
		}
	}
	writers.Wait()
	if log.Len() > 0 {
		t.Errorf("log: %s", log)
	}
}

func TestAFileThatCannotBeReadIsIgnoredWithOneLine(t *testing.T) {
	good, err := Format(ordered(graph, "h1", 0))
	if err != nil {
		t.Fatal(err)
	}
	changed := func(at int, to byte) []byte {
		data := bytes.Clone(good)
		data[at] = to
		return data
	}
	other, err := Format(ordered("0123456789abcdee", "h1", 0))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data     []byte
		replaced bool
	}{
		"empty":            {nil, true},
		"cut off":          {good[:len(good)-1], true},
		"another byte":     {changed(len(good)-1, ^good[len(good)-1]), true},
		"another magic":    {changed(0, 'X'), true},
		"version 0":        {changed(4, 0), true},
		"a later version":  {changed(4, version+1), false},
		"too large":        {append(bytes.Clone(good), make([]byte, maxFile)...), true},
		"of another graph": {other, true},
	} {
		t.Run(name, func(t *testing.T) {
			d, log := open(t, t.TempDir())
			file := filepath.Join(d.path, graph+suffix)
			if err := os.WriteFile(file, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if found := d.Load(graph); found != nil {
					t.Errorf("found %v", found)
				}
			}
			if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "file="+graph+suffix) {
				t.Errorf("%d lines: %s", lines, log)
			}
			d.Save(graph, ordered(graph, "h2", 0))
			if found := d.Load(graph); (found != nil) != c.replaced {
				t.Errorf("after it was written again: %v", found)
			}
		})
	}
}

func TestADirectoryThatOthersMayFillIsRefused(t *testing.T) {
	shared := t.TempDir()
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{shared, link} {
		if d, err := Open(path, nil, slog.New(slog.DiscardHandler)); err == nil {
			d.Close()
			t.Errorf("%s was opened", path)
		}
	}
}

// The oldest files are removed first. Files of killed processes count too, and files of others stay.
func TestTheOldestFilesAreRemovedFirst(t *testing.T) {
	d, _ := open(t, t.TempDir())
	at := time.Now().Add(-time.Hour)
	put := func(name string, size int) {
		file := filepath.Join(d.path, name)
		if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		at = at.Add(time.Minute)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	put("notes.txt", 10_000)
	put("DEAD"+temporary, 1000)
	for n := range 4 {
		put(fmt.Sprintf("%016x%s", n, suffix), 1000)
	}
	d.most = 3000
	d.Save(graph, ordered(graph, "h1", 0))
	d.Sync()
	var left []string
	entries, err := os.ReadDir(d.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if got, want := strings.Join(left, " "), fmt.Sprintf("%016x.learned %016x.learned %s.learned notes.txt", 2, 3, graph); got != want {
		t.Errorf("%s are left, want %s", got, want)
	}
}

// A directory that cannot be written costs one line and nothing else.
func TestAVanishedDirectoryIsLoggedOnce(t *testing.T) {
	d, log := open(t, filepath.Join(t.TempDir(), "learned"))
	if err := os.Remove(d.path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if d.Save(graph, ordered(graph, "h1", 0)) {
			t.Error("a file in a directory that is gone is said to be kept")
		}
		d.Sync()
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "could not be written") {
		t.Errorf("%d lines: %s", lines, log)
	}
}

// A directory may have many files, so they are not counted after each write.
func TestFilesAreCountedSeldom(t *testing.T) {
	d, _ := open(t, t.TempDir())
	known := ordered(graph, "h1", 0)
	for n := range 50 {
		known.Orders[0].Why = strings.Repeat("x", n)
		d.Save(graph, known)
		d.Sync()
	}
	if d.counts != 1 {
		t.Errorf("50 small writes counted the files %d times", d.counts)
	}
	known.Orders[0].Why = strings.Repeat("x", countAfter)
	for range 2 {
		d.Save(graph, known)
		d.Sync()
	}
	if d.counts != 2 {
		t.Errorf("after a large write, the files were counted %d times", d.counts)
	}
}

// Somebody may fill the directory with files that cannot be read.
func TestManyDamagedFilesFillNoLog(t *testing.T) {
	d, log := open(t, t.TempDir())
	for n := range 2 * maxLogged {
		name := fmt.Sprintf("%016x", n)
		if err := os.WriteFile(filepath.Join(d.path, name+suffix), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		d.Load(name)
	}
	if lines := strings.Count(log.String(), "\n"); lines != maxLogged {
		t.Errorf("%d lines", lines)
	}
}

// FuzzParse: bytes give an error or what can be written again, and never break.
func FuzzParse(f *testing.F) {
	full := pecanv1.MergeLearned(ordered(graph, "h1", 0), &pecanv1.Learned{
		Profiles:   []*pecanv1.StoredProfile{{Fingerprint: graph, Nodes: []*pecanv1.NodeMetrics{{Node: "map_1", Elements: 3, SelfCpuS: 0.5}}, EpochsBegun: 1}},
		Placements: []*pecanv1.PlacementKnown{{Fingerprint: graph, Remote: 2}},
		Histories:  []*pecanv1.StoredHistory{{Fingerprint: graph, Jobs: []*pecanv1.PastJob{{JobId: "j1", Epochs: 1, LastS: 5}}}},
	})
	for _, l := range []*pecanv1.Learned{{}, full} {
		data, err := Format(l)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)/2])
		data = bytes.Clone(data)
		data[4]++
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := Parse(data)
		if err != nil {
			if read != nil || !errors.Is(err, errDamaged) && !errors.Is(err, errNewer) {
				t.Fatalf("%v with %v", err, read)
			}
			return
		}
		for _, fingerprint := range read.Graphs() {
			read = pecanv1.MergeLearned(read, read.Of(fingerprint))
		}
		again, err := Format(read)
		if err != nil {
			t.Fatal(err)
		}
		if same, err := Parse(again); err != nil || !proto.Equal(same, read) {
			t.Fatalf("%v was written, and %v was read (%v)", read, same, err)
		}
	})
}
