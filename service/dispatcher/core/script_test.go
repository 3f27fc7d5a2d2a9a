package core_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/journaltest"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

var rewrite = flag.Bool("rewrite", false, "write what the core does now into testdata; read the difference before you commit it")

// TestScripts runs the command files. A line that begins with "> " is an input, and the following lines are its
// results.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no command files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newScript(t)
	var out strings.Builder
	lines := bufio.NewScanner(strings.NewReader(string(data)))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&out, line)
			for _, result := range s.run(strings.TrimPrefix(line, "> ")) {
				fmt.Fprintln(&out, result)
			}
			s.checkReplay()
		case line == "", strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		}
	}
	if got := out.String(); got != string(data) {
		if *rewrite {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s: the core does something else now (run with -rewrite and look at the difference):\n%s", file, firstDifference(string(data), got))
	}
}

// runFile runs the commands of a file for their records.
func (s *script) runFile(name string) {
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "> "); ok {
			s.run(command)
		}
	}
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d\n  want %s\n  got  %s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines instead of %d", len(b), len(a))
}

// script is a core with a clock and all its records.
type script struct {
	t       *testing.T
	cfg     core.Config
	core    *core.Core
	now     time.Duration
	records []*pecanv1.Record
	// lists has read the records, and listed has what singles returns for each of them.
	lists  *journaltest.Lists
	listed [][]*pecanv1.Record
	jobs   int
	// commons has what sessions know of epochs.
	commons map[commonKey]*pecanv1.StartStream
	// watched has the workers that updates have named, by watch.
	watched map[core.WatchID][]*pecanv1.WorkerAddress
	// decisions has the decision on a cache that was shown last, by watch.
	decisions map[core.WatchID]string
	// plans has the plan of the last request for workers, by job.
	plans map[string]uint64
	// metricsSequence numbers the metrics of workers.
	metricsSequence uint64
}

func newScript(t *testing.T) *script {
	return &script{
		t: t, cfg: core.DefaultConfig(), core: core.New(core.DefaultConfig(), durable.NewState()),
		commons: map[commonKey]*pecanv1.StartStream{}, watched: map[core.WatchID][]*pecanv1.WorkerAddress{}, decisions: map[core.WatchID]string{},
		plans: map[string]uint64{},
	}
}

// decide feeds the core and keeps the records as bytes, as the disk would.
func (s *script) decide(input any) core.Result {
	result := s.core.Decide(input, s.now)
	for _, record := range result.Records {
		s.records = append(s.records, proto.Clone(record).(*pecanv1.Record))
	}
	return result
}

func (s *script) replay() *durable.State {
	state := durable.NewState()
	for i, record := range s.records {
		if err := state.Apply(proto.Clone(record).(*pecanv1.Record)); err != nil {
			s.t.Fatalf("replay record %d: %v", i, err)
		}
	}
	return state
}

func (s *script) checkReplay() {
	s.t.Helper()
	if replayed := s.replay(); replayed.Hash() != s.core.State().Hash() {
		s.t.Fatalf("replayed state differs:\n%v\n%v", replayed.Snapshot(), s.core.State().Snapshot())
	}
	data, err := s.core.State().Marshal()
	if err != nil {
		s.t.Fatal(err)
	}
	restored, err := durable.Restore(data)
	if err != nil || restored.Hash() != s.core.State().Hash() {
		s.t.Fatalf("restored state differs (%v):\n%v\n%v", err, restored.Snapshot(), s.core.State().Snapshot())
	}
	// Snapshots do not show a field that they leave out.
	for _, job := range s.core.State().Jobs() {
		if again := restored.Job(job.JobId); !proto.Equal(again.StoredJob, job.StoredJob) {
			s.t.Fatalf("restored job differs:\n%v\n%v", again.StoredJob, job.StoredJob)
		}
	}
}

// args are the words of a command: name=value, or a bare name.
type args map[string]string

func (a args) number(name string) uint64 {
	n, _ := strconv.ParseUint(a[name], 10, 64)
	return n
}

func (a args) has(name string) bool { _, ok := a[name]; return ok }

// assignment is the first one unless the command names another.
func (a args) assignment() uint64 {
	if !a.has("assignment") {
		return 1
	}
	return a.number("assignment")
}

func (a args) list(name string) []string {
	if a[name] == "" {
		return nil
	}
	return strings.Split(a[name], ",")
}

// streamID reads job/epoch/stream.
func streamID(text string) *pecanv1.StreamId {
	id := &pecanv1.StreamId{}
	parts := strings.Split(text, "/")
	if len(parts) == 3 {
		epoch, _ := strconv.ParseUint(parts[1], 10, 64)
		stream, _ := strconv.ParseUint(parts[2], 10, 32)
		id.JobId, id.Epoch, id.Stream = parts[0], epoch, uint32(stream)
	}
	return id
}

func enum[E ~int32](values map[string]int32, prefix, text string) E {
	return E(values[prefix+strings.ToUpper(text)])
}

func (s *script) run(line string) []string {
	words := strings.Fields(line)
	a := args{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		a[name] = value
	}
	switch words[0] {
	case "config":
		return s.configure(a)
	case "restart":
		if a.has("client_timeout") {
			s.cfg.ClientTimeout, _ = time.ParseDuration(a["client_timeout"])
		}
		s.core = core.New(s.cfg, s.replay())
		return s.show(s.decide(core.Start{ClusterID: "other", UnixS: s.unix()}))
	case "wait":
		return s.wait(words[1])
	case "pause":
		d, _ := time.ParseDuration(words[1])
		s.now += d
		return s.show(s.decide(core.Tick{}))
	case "status":
		return s.status()
	case "explain":
		return s.explain(a["job"])
	case "learned":
		return s.learned(a["fingerprint"])
	case "fleet":
		return s.fleet(a["job"])
	case "caching":
		return s.caching(a["job"])
	case "hears":
		return s.hears(a)
	case "caches":
		return s.caches()
	case "asks":
		return s.asks(a)
	}
	if input := s.cacheInput(words[0], a); input != nil {
		return s.show(s.decide(input))
	}
	if words[0] == "merge" {
		return s.show(s.decide(merged(a)))
	}
	if input := s.orderInput(words[0], a); input != nil {
		return s.show(s.decide(input))
	}
	if input := s.clientInput(words[0], a); input != nil {
		return s.show(s.decide(input))
	}
	if input := s.workerInput(words[0], a); input != nil {
		return s.show(s.decide(input))
	}
	s.t.Fatalf("unknown command %q", line)
	return nil
}

func (s *script) configure(a args) []string {
	if a.has("workers") {
		s.cfg.WorkerAddresses = a.list("workers")
	}
	if a.has("dataset-timeout") {
		s.cfg.DatasetTimeout, _ = time.ParseDuration(a["dataset-timeout"])
	}
	if a.has("provider") {
		s.cfg.Fleet = fleet.Limits{Provider: a["provider"], Min: int(a.number("min")), Max: int(a.number("max")), Fixed: a["provider"] == "static"}
		s.cfg.Fleet.Idle, _ = time.ParseDuration(a["idle"])
	}
	if a.has("cache_quota") {
		s.cfg.CacheQuota = int64(a.number("cache_quota"))
	}
	s.cfg.CacheShared = a.has("cache_shared")
	if a.has("cache_mode") {
		s.cfg.CacheMode = core.CacheMode(a["cache_mode"])
	}
	if a.has("cache_ttl") {
		s.cfg.CacheTTL, _ = time.ParseDuration(a["cache_ttl"])
	}
	// tenants=name:weight:max_slots:max_slots_per_job:cache_bytes,...
	for _, text := range a.list("tenants") {
		parts := append(strings.Split(text, ":"), "0", "0", "0", "0")
		tenant := schedule.Tenant{}
		tenant.Weight, _ = strconv.ParseFloat(parts[1], 64)
		tenant.MaxSlots, _ = strconv.Atoi(parts[2])
		tenant.MaxSlotsPerJob, _ = strconv.Atoi(parts[3])
		tenant.CacheBytes, _ = strconv.Atoi(parts[4])
		if s.cfg.Tenants == nil {
			s.cfg.Tenants = map[string]schedule.Tenant{}
		}
		s.cfg.Tenants[parts[0]] = tenant
	}
	s.core = core.New(s.cfg, durable.NewState())
	return nil
}

// wait lets time pass in ticks of 100 ms. Workers without a heartbeat are silent.
func (s *script) wait(text string) []string {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	for end := s.now + d; s.now < end; {
		s.now += 100 * time.Millisecond
		lines = append(lines, s.show(s.decide(core.Tick{}))...)
	}
	return lines
}
