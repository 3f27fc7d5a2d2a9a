package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/policies/autoscale"
	"github.com/pecan-ml/pecan/policies/sim"
	"github.com/pecan-ml/pecan/service/dispatcher/placing"
)

// parsed returns the options of a command line. The event log is in a directory of the test.
func parsed(t *testing.T, arguments ...string) options {
	t.Helper()
	o := options{seeds: 2, windows: 12, log: filepath.Join(t.TempDir(), "log.csv")}
	flags := pflag.NewFlagSet("simulate", pflag.ContinueOnError)
	o.switches.register(flags)
	if err := flags.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestThePageAndThePictureFollowFromTheEventLog(t *testing.T) {
	o := parsed(t)
	o.page = t.TempDir()
	if err := run(o, io.Discard); err != nil {
		t.Fatal(err)
	}
	read := func(directory, name string) string {
		text, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	again := o
	again.from, again.page, again.log = o.log, t.TempDir(), ""
	if err := run(again, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"placement.md", "placement.svg"} {
		if read(o.page, name) != read(again.page, name) {
			t.Errorf("%s differs when the event log is drawn again", name)
		}
	}
	picture := read(o.page, "placement.svg")
	for decoder := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range sim.Policies {
		// A label above and one for the summary.
		if strings.Count(picture, ">"+p.Name+"<") != 2 {
			t.Errorf("the picture does not name %s twice", p.Name)
		}
	}
	if strings.Contains(picture, "NaN") || strings.Contains(picture, "Inf") {
		t.Error("the picture has coordinates that are no numbers")
	}
	for _, change := range sim.AllChanges {
		if !strings.Contains(read(o.page, "placement.md"), "| "+change.Name+" |") {
			t.Errorf("the page lacks %q", change.Name)
		}
	}
}

func TestTheEventLogKeepsWhatTheReportNeeds(t *testing.T) {
	var written []sim.Run
	var log bytes.Buffer
	events := newEventWriter(&log)
	sim.Compare(sim.StableScenarios(20)[:2], sim.Policies, 2, func(r sim.Run) {
		written = append(written, r)
		events.write(r)
	})
	if err := events.end(); err != nil {
		t.Fatal(err)
	}
	var read []sim.Run
	if err := readEvents(&log, func(r sim.Run) { read = append(read, r) }); err != nil {
		t.Fatal(err)
	}
	if len(read) != len(written) {
		t.Fatalf("%d runs, want %d", len(read), len(written))
	}
	for i, r := range read {
		w := written[i]
		if r.Scenario != w.Scenario || r.Family != w.Family || r.Policy != w.Policy || r.Seed != w.Seed || len(r.Steps) != len(w.Steps) {
			t.Fatalf("run %d is %v, %v, %v, %d with %d windows", i, r.Scenario, r.Family, r.Policy, r.Seed, len(r.Steps))
		}
		if sim.Converged(r.Steps) != sim.Converged(w.Steps) || sim.Changes(r.Steps) != sim.Changes(w.Steps) {
			t.Errorf("run %d converges or changes differently", i)
		}
		near := func(what string, a, b float64) {
			if a < b*0.9999 || a > b*1.0001 {
				t.Errorf("run %d: %s is %v, want %v", i, what, a, b)
			}
		}
		near("the bill", sim.Bill(r.Steps), sim.Bill(w.Steps))
		near("the price of an epoch", sim.EpochPrice(r.Steps), sim.EpochPrice(w.Steps))
		near("the time of the last step", r.Steps[19].Seconds, w.Steps[19].Seconds)
	}
}

func TestADamagedEventLogIsRefused(t *testing.T) {
	row := "stable,floor,search,0,0,1,1,1,20,2,1,0.5,2,1,search,false,because\n"
	head := strings.Join(columns, ",") + "\n"
	for text, want := range map[string]string{
		"":           "head of the event log",
		head + "x\n": "wrong number of fields",
		head + strings.Replace(row, "0.5", "half", 1):        "line 2",
		head + strings.Replace(row, "0,0,1,1", "0,1,1,1", 1): "window 1 follows 0 windows",
	} {
		if err := readEvents(strings.NewReader(text), func(sim.Run) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestTheSwitchesOfThePredecessorsReachTheirPolicies(t *testing.T) {
	o := parsed(t, "--scaling-policy", "1", "--scaling-threshold-up", "0.2")
	policies, err := o.switches.policies()
	if err != nil || len(policies) != 2 || policies[1].New().(*autoscale.Cachew).Up != 0.2 {
		t.Errorf("scaling_policy 1: %v %v", policies, err)
	}
	// With a high threshold, Pecan's code stops at fewer remote workers.
	last := func(arguments ...string) (remote int) {
		o := parsed(t, arguments...)
		policies, err := o.switches.policies()
		if err != nil {
			t.Fatal(err)
		}
		scenarios := o.switches.adjust(sim.StableScenarios(40))
		sim.Compare(scenarios[1:2], policies[1:], 3, func(r sim.Run) {
			for _, s := range r.Steps {
				remote = max(remote, s.Workers.Remote)
			}
		})
		return remote
	}
	if low, high := last("--scaling-policy", "3", "--scaling-threshold-up", "0.01"), last("--scaling-policy", "3", "--scaling-threshold-up", "0.4"); low <= high {
		t.Errorf("a threshold of 1 %% gives %d remote workers, one of 40 %% gives %d", low, high)
	}
	if cheap, expensive := last("--scaling-policy", "3", "--optimize-cost", "--worker-cost", "0.001"), last("--scaling-policy", "3", "--optimize-cost", "--worker-cost", "50"); cheap <= expensive {
		t.Errorf("cheap workers: %d, expensive ones: %d", cheap, expensive)
	}
	if all := last("--scaling-policy", "2"); all != 20 {
		t.Errorf("scaling_policy 2 gives %d remote workers, want all 20", all)
	}
	o = parsed(t, "--batches-per-decision", "2000", "--client-cost", "9")
	job := o.switches.adjust(sim.StableScenarios(10))[0].Job(0)
	if job.Elements != 2000 || job.Noise != 0.015 || job.Goal.Prices.Trainer != 9 {
		t.Errorf("the job has %d elements per window, noise %v and prices %v", job.Elements, job.Noise, job.Goal.Prices)
	}
	for _, wrong := range [][]string{{"--scaling-policy", "4"}, {"--client-cost", "-1"}, {"--batches-per-decision", "0"}} {
		o := parsed(t, wrong...)
		if _, err := o.switches.policies(); err == nil {
			t.Errorf("%v is accepted", wrong)
		}
	}
	o = parsed(t, "--worker-cost", "1")
	o.page = t.TempDir()
	if err := run(o, io.Discard); err == nil || !strings.Contains(err.Error(), "published constants") {
		t.Errorf("a page with other prices: %v", err)
	}
}

func TestADispatchersDecisionsAreReplayed(t *testing.T) {
	var out bytes.Buffer
	o := parsed(t)
	o.replay = "testdata/decisions.jsonl"
	if err := run(o, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 6 {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for i, line := range lines[1:] {
		// The dispatcher runs the policy search, so search decides from the recorded windows as recorded.
		cells := strings.Fields(line)
		if recorded, search := cells[6], cells[7]; recorded != search {
			t.Errorf("line %d: search decides %s, recorded is %s:\n%s", i+2, search, recorded, out.String())
		}
	}
	// The log is of an earlier version, without the use of processors and without queues.
	for i, line := range lines[1:] {
		if cells := strings.Fields(line); !slices.Equal(cells[10:13], []string{"-", "-", "-"}) {
			t.Errorf("line %d: Cachew and HPA decide %v without their measurements", i+2, cells[10:13])
		}
	}
	for name, text := range map[string]string{
		"no decision has a measurement window": `{"job": "j", "limits": {"Max": {"Remote": 1}}}`, "line 1: invalid character": "no JSON",
		"the limits allow no worker": `{"job": "j", "trainers": 1}`,
	} {
		o.replay = filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(o.replay, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(o, io.Discard); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A trainer waits half of its time for its workers, which are always busy with waiting for files. A third worker changes nothing.
func TestAReplayUsesTheRecordedProcessorsQueuesAndHorizon(t *testing.T) {
	decided := func(first int, cpu, queue float64, horizon int) (lines []map[string]string) {
		var log bytes.Buffer
		for n := range 14 {
			e := placing.Event{
				AtS: 3 * float64(n), Job: "j", Objective: "cost", Prices: autoscale.Published, Seconds: 3, Trainers: 1, Remote: 2, ElementS: 0.1, Wait: 0.5,
				Busy: 1, ProducedS: 10, CPU: &cpu, Queue: proto.Float64(1), Horizon: horizon,
			}
			switch e.Limits.Max.Remote = 8; n {
			case 0:
				e.Remote = first
			case 1:
				e.Remote = 3
			default:
				e.Queue = &queue
			}
			if err := json.NewEncoder(&log).Encode(e); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		o := parsed(t)
		o.replay = filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(o.replay, log.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(o, &out); err != nil {
			t.Fatal(err)
		}
		head, rest, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
		names := strings.Fields(head)
		for line := range strings.Lines(rest) {
			found := map[string]string{}
			for i, cell := range strings.Fields(line) {
				found[names[i]] = cell
			}
			lines = append(lines, found)
		}
		return lines
	}
	for _, c := range []struct {
		policy        string
		window, first int
		cpu, queue    float64
		horizon       int
		want          string
	}{
		{"hpa", 0, 2, 0.05, 1, 200, "1+0"}, {"hpa", 0, 2, 0.9, 1, 200, "3+0"},
		{"cachew-paper", 13, 2, 0.05, 1, 200, "2+0"}, {"cachew-paper", 13, 2, 0.05, 3, 200, "1+0"},
		{"search", 0, 1, 0.05, 1, 200, "2+0"}, {"search", 0, 1, 0.05, 1, 2, "1+0"},
	} {
		if got := decided(c.first, c.cpu, c.queue, c.horizon)[c.window][c.policy]; got != c.want {
			t.Errorf("%s wants %s in window %d with %v of the processors, %v ready elements and %d windows left, want %s", c.policy, got, c.window, c.cpu, c.queue, c.horizon, c.want)
		}
	}
}
