package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/check"
)

// table prints rows in columns. The first row is the header.
func table(out io.Writer, rows [][]string) {
	for _, line := range align(rows) {
		// Workers and trainers choose some of the texts. A terminal must not interpret them.
		fmt.Fprintln(out, strings.TrimRight(printable(line), " "))
	}
}

func showStatus(out io.Writer, s *pecanv1.StatusResponse) {
	state := "memory only (a restart loses it)"
	if s.WorkDir != "" {
		state = s.WorkDir
	}
	table(out, [][]string{
		{"cluster", s.ClusterId}, {"version", s.Version}, {"state", state}, {"up", seconds(s.UptimeS)},
		{"clients", fmt.Sprint(s.Clients)}, {"datasets", fmt.Sprint(len(s.Datasets))},
	})
	if p := s.Provider; p != nil {
		fmt.Fprintln(out, "\nprovider of workers")
		showProvider(out, p)
	}
	fmt.Fprintln(out, "\nworkers")
	showWorkers(out, s)
	fmt.Fprintln(out, "\njobs")
	showJobs(out, s)
	if showsTenants(s) {
		fmt.Fprintln(out, "\ntenants")
		showTenants(out, s)
	}
}

// showsTenants reports whether there is more to say of tenants than that all jobs have the same one.
func showsTenants(s *pecanv1.StatusResponse) bool {
	return len(s.Tenants) > 1 || len(s.Tenants) == 1 && (s.Tenants[0].Name != pecanv1.DefaultTenant || s.Tenants[0].MaxSlots+s.Tenants[0].MaxSlotsPerJob > 0)
}

func showTenants(out io.Writer, s *pecanv1.StatusResponse) {
	quota := func(n int32) string {
		if n == 0 {
			return "-"
		}
		return fmt.Sprint(n)
	}
	rows := [][]string{{"TENANT", "WEIGHT", "JOBS", "RUNNING", "WAITING", "MAX SLOTS", "MAX PER JOB"}}
	for _, t := range s.Tenants {
		rows = append(rows, []string{
			t.Name, fmt.Sprint(t.Weight), fmt.Sprint(t.Jobs), fmt.Sprint(t.Running), fmt.Sprint(t.Waiting), quota(t.MaxSlots), quota(t.MaxSlotsPerJob),
		})
	}
	table(out, rows)
}

func showProvider(out io.Writer, p *pecanv1.ProviderStatus) {
	count := func(n uint32) string { return fmt.Sprint(n) }
	table(out, [][]string{
		{"PROVIDER", "WANTED", "DESIRED", "MIN", "MAX", "REQUESTED", "PENDING", "READY", "LEAVING", "STUCK"},
		{p.Name, count(p.Wanted), count(p.Desired), count(p.Min), count(p.Max), count(p.Requested), count(p.Pending), count(p.Ready), fmt.Sprint(len(p.Leaving)), count(p.Stuck)},
	})
	for _, note := range []struct{ what, text string }{{"why", p.Why}, {"a call of the provider failed", p.Error}} {
		if note.text != "" {
			fmt.Fprintf(out, "%s: %s\n", note.what, printable(note.text))
		}
	}
}

func showWorkers(out io.Writer, s *pecanv1.StatusResponse) {
	if len(s.Workers) == 0 {
		fmt.Fprintln(out, "no worker is registered; start one with pecan-worker --dispatcher HOST:PORT")
		return
	}
	rows := [][]string{{"WORKER", "ADDRESS", "STATE", "KIND", "STREAMS", "CORES", "CPU", "MEMORY", "HEARTBEAT", "TENSORFLOW"}}
	for _, w := range s.Workers {
		running := 0
		for _, stream := range w.Streams {
			if !stream.Ended {
				running++
			}
		}
		rows = append(rows, []string{
			w.Address.GetWorkerId(), orElse(w.Address.GetTcp(), w.Address.GetUnix()), w.State, orElse(w.Kind, "-"),
			fmt.Sprintf("%d/%d (+%d computed)", running, w.MaxStreams, len(w.Streams)-running), fmt.Sprint(w.Cores), seconds(w.CpuS),
			size(w.ResidentBytes), seconds(w.LastHeartbeatS) + " ago", orElse(w.TensorflowVersion, "-"),
		})
	}
	table(out, rows)
}

func showJobs(out io.Writer, s *pecanv1.StatusResponse) {
	if len(s.Jobs) == 0 {
		fmt.Fprintln(out, "no job is open")
		return
	}
	rows := [][]string{{"JOB", "NAME", "MODE", "SHARDING", "STREAMS", "CLIENTS", "EPOCH", "STATE", "DONE", "RUNNING", "WAITING", "ELEMENTS"}}
	var notes []string
	for _, job := range s.Jobs {
		head := []string{
			job.JobId, orElse(job.Name, "(private)"), pecanv1.Word(job.Options.GetMode(), "MODE_"), pecanv1.Word(job.Options.GetSharding(), "SHARDING_"),
			fmt.Sprint(job.Plan.GetNumStreams()), fmt.Sprint(len(job.Clients)),
		}
		epochs := job.Epochs
		if len(epochs) > 4 {
			epochs = epochs[len(epochs)-4:]
		}
		if len(epochs) == 0 {
			rows = append(rows, append(head, "-", "not started", "", "", "", ""))
		}
		for _, e := range epochs {
			state, _, _ := strings.Cut(e.State, ":")
			shown := state
			switch n := len(e.OrderedStreams) + int(e.OrderedBelow-e.OrderedFrom); {
			case n > 0:
				shown += fmt.Sprintf(", %d ordered", n)
			case e.Ordered:
				shown += ", ordered"
			}
			rows = append(rows, append(append([]string(nil), head...), fmt.Sprint(e.Epoch), shown,
				fmt.Sprint(e.StreamsDone), fmt.Sprint(e.StreamsRunning), fmt.Sprint(e.StreamsWaiting), fmt.Sprint(e.Elements)))
			for _, p := range e.Passes {
				now := map[bool]string{true: " and is waiting now"}[p.Starved]
				notes = append(notes, fmt.Sprintf("job %s, epoch %d: trainer %s read %d elements (%s), waited %s%s", orElse(job.Name, job.JobId), e.Epoch,
					p.ClientId, p.Elements, size(int64(p.Bytes)), seconds(p.WaitedS), now))
			}
			if e.StreamsTruncated > 0 {
				notes = append(notes, fmt.Sprintf("job %s, epoch %d: %d stream(s) were truncated when their workers died; at least %d elements are lost", orElse(job.Name, job.JobId), e.Epoch, e.StreamsTruncated, e.Lost))
			}
			for _, text := range []string{e.Waiting, strings.TrimPrefix(e.State, state)} {
				if text = strings.TrimPrefix(text, ": "); text != "" {
					notes = append(notes, fmt.Sprintf("job %s, epoch %d: %s", orElse(job.Name, job.JobId), e.Epoch, text))
				}
			}
		}
		if r := job.Recovery; r.GetRecomputed()+r.GetStarted()+r.GetRestored() > 0 {
			notes = append(notes, fmt.Sprintf("job %s: streams resumed %d times at an index and %d times from a checkpoint; %d elements were recomputed",
				orElse(job.Name, job.JobId), r.Started, r.Restored, r.Recomputed))
		}
		durable := map[bool]string{true: "with a work directory", false: "in memory only"}[s.WorkDir != ""]
		notes = append(notes, fmt.Sprintf("job %s: mode %s, class %s, S=%d, plan %.12s, seed %d, order %s, dispatcher %s", orElse(job.Name, job.JobId), pecanv1.Word(job.Options.GetMode(), "MODE_"),
			strings.TrimPrefix(job.Plan.GetDeterminism().String(), "DETERMINISM_CLASS_"), job.Plan.GetNumStreams(), job.Plan.GetHash(), job.Options.GetSeed(), orderOf(job.Options), durable))
		if tenant, weight := job.Options.EffectiveTenant(), job.Options.EffectiveWeight(); tenant != pecanv1.DefaultTenant || weight != 1 {
			notes = append(notes, fmt.Sprintf("job %s: tenant %s, weight %v, %d streams running", orElse(job.Name, job.JobId), tenant, weight, job.Running))
		}
		if asked := job.Options.GetRequestedMode(); asked != pecanv1.Mode_MODE_UNSPECIFIED {
			notes = append(notes, fmt.Sprintf("job %s: mode %s was requested, but this dataset cannot keep its guarantee", orElse(job.Name, job.JobId), pecanv1.Word(asked, "MODE_")))
		}
		if order := job.Order; order != nil {
			notes = append(notes, fmt.Sprintf("job %s, order: %s: %s", orElse(job.Name, job.JobId), order.State, order.Why))
		}
		if c := job.Cache; c != nil {
			notes = append(notes, fmt.Sprintf("job %s, cache: %s, %d of %d segments, %s", orElse(job.Name, job.JobId), c.State, c.Segments, c.Streams, size(c.Bytes)))
		}
		for _, text := range job.Plan.GetReasons() {
			notes = append(notes, fmt.Sprintf("job %s, plan: %s", orElse(job.Name, job.JobId), text))
		}
	}
	table(out, rows)
	for _, note := range notes {
		fmt.Fprintln(out, printable(note))
	}
}

// orderOf formats how a job's order of steps is chosen, and the tolerance.
func orderOf(options *pecanv1.JobOptions) string {
	switch options.GetOrder() {
	case pecanv1.Order_ORDER_UNSPECIFIED, pecanv1.Order_ORDER_OFF:
		return "off"
	}
	return fmt.Sprintf("%s (%s)", pecanv1.Word(options.GetOrder(), "ORDER_"), pecanv1.Word(options.GetOrderTolerance(), "ORDER_TOLERANCE_"))
}

func showDatasets(out io.Writer, s *pecanv1.StatusResponse) {
	if len(s.Datasets) == 0 {
		fmt.Fprintln(out, "no dataset is registered")
		return
	}
	rows := [][]string{{"DATASET", "GRAPH", "FINGERPRINT"}}
	for _, d := range s.Datasets {
		rows = append(rows, []string{d.DatasetId, size(d.GraphBytes), d.Fingerprint})
	}
	table(out, rows)
}

func showNodes(out io.Writer, s *pecanv1.StatusResponse) {
	rows := [][]string{{"JOB", "NODE", "OPERATION", "ELEMENTS", "OWN TIME", "BYTES IN", "BYTES OUT"}}
	for _, job := range s.Jobs {
		for _, n := range job.Nodes {
			rows = append(rows, []string{
				orElse(job.Name, job.JobId), n.Node, orElse(n.Op, "-"), fmt.Sprint(n.Elements), seconds(n.SelfCpuS), size(int64(n.BytesIn)), size(int64(n.BytesOut)),
			})
		}
	}
	if len(rows) == 1 {
		fmt.Fprintln(out, "no worker has reported measurements of a step yet")
		return
	}
	table(out, rows)
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

func seconds(s float64) string {
	if !(s >= 0 && s < check.MaxDuration.Seconds()) {
		return "-"
	}
	d := time.Duration(s * float64(time.Second))
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value := float64(n)
	i := 0
	for ; value >= 1024 && i < len(units)-1; i++ {
		value /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[i])
}
