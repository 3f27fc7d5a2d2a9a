package journal

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/store"
)

// report is the result of a check.
type report struct {
	Dir string `json:"dir"`
	// Unread is set if the store could not be opened; only Problems is set.
	Unread  bool   `json:"unread"`
	Cluster string `json:"cluster"`
	// Snapshot is the number of records that the snapshot replaces; Records follow it, up to number Last. Acknowledged is the number of
	// the last record that the dispatcher has acknowledged.
	Snapshot      uint64 `json:"snapshot_records"`
	SnapshotBytes int    `json:"snapshot_bytes"`
	Records       uint64 `json:"records"`
	Last          uint64 `json:"last_record"`
	Acknowledged  uint64 `json:"acknowledged"`
	// InvalidSlot is set if one of the two slots of the acknowledgement mark cannot be read.
	InvalidSlot bool `json:"invalid_slot"`
	// Starts to Streams count what the replayed state contains.
	Starts   uint64 `json:"starts"`
	Datasets int    `json:"datasets"`
	Clients  int    `json:"clients"`
	Jobs     int    `json:"jobs"`
	Epochs   int    `json:"open_epochs"`
	Streams  int    `json:"open_streams"`
	// Graphs is the number of stored graphs; Unused of them belong to no dataset.
	Graphs     int    `json:"graphs"`
	GraphBytes uint64 `json:"graph_bytes"`
	Unused     int    `json:"unused_graphs"`
	// Torn is the size of an incomplete write at the end of the log, which was never acknowledged.
	Torn     int64    `json:"torn_bytes"`
	Problems []string `json:"problems"`
}

// check reads the whole store, prints a report, and returns an error if the store is damaged.
func check(ctx context.Context, r *store.Reader, o Options, out io.Writer) error {
	found, err := examine(ctx, r)
	if err != nil {
		return Unchecked{err}
	}
	if o.JSON {
		err = found.json(out)
	} else {
		err = found.print(out)
	}
	if err == nil && len(found.Problems) > 0 {
		err = fmt.Errorf("store %s is damaged: %d problems, the first: %s", found.Dir, len(found.Problems), found.Problems[0])
	}
	return err
}

func examine(ctx context.Context, r *store.Reader) (*report, error) {
	f := &report{Dir: r.Dir(), Problems: []string{}}
	if err := r.Verify(); err != nil {
		f.problem(err)
	}
	state := f.replay(ctx, r)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	f.count(state.Snapshot())
	f.graphs(r, state.Snapshot())
	var err error
	if f.Acknowledged, f.InvalidSlot, err = r.Acknowledged(); err != nil {
		f.problem(err)
	}
	if f.Last < f.Acknowledged {
		f.problem(fmt.Errorf("records up to %d were acknowledged, but the last readable record is %d", f.Acknowledged, f.Last))
	}
	tail := r.Tail()
	if tail.Torn {
		f.Torn = tail.Size - tail.End
	}
	if tail.Damage != "" {
		f.problem(fmt.Errorf("%s: %s", tail.Log, tail.Damage))

	}
	return f, nil
}

func (r *report) problem(err error) { r.Problems = append(r.Problems, err.Error()) }

// replay applies the snapshot and the records, as a starting dispatcher does.
func (r *report) replay(ctx context.Context, reader *store.Reader) *durable.State {
	state := durable.NewState()
	data, stands, err := reader.Snapshot()
	r.Snapshot, r.SnapshotBytes, r.Last = stands, len(data), stands
	if err != nil {
		r.problem(err)
		return state
	}
	if data != nil {
		restored, err := durable.Restore(data)
		if err != nil {
			r.problem(fmt.Errorf("the snapshot is invalid: %w", err))
			return state
		}
		if state = restored; state.Applied() != stands {
			r.problem(fmt.Errorf("the header of the snapshot says %d records, but its content has %d", stands, state.Applied()))
		}
	}
	broken := false
	err = reader.Records(func(number uint64, data []byte) error {
		r.Records, r.Last = r.Records+1, number
		if broken {
			return ctx.Err()
		}
		record := &pecanv1.Record{}
		err := proto.Unmarshal(data, record)
		if err == nil {
			err = state.Apply(record)
		}
		if err != nil {
			broken = true
			r.problem(fmt.Errorf("record %d: %w; later records were read but not applied", number, err))
		}
		return ctx.Err()
	})
	if err != nil {
		r.problem(err)
	}
	return state
}

func (r *report) count(s *pecanv1.Snapshot) {
	r.Cluster, r.Starts = s.ClusterId, s.Incarnation
	r.Datasets, r.Clients, r.Jobs = len(s.Datasets), len(s.Clients), len(s.Jobs)
	for _, job := range s.Jobs {
		r.Epochs += len(job.Epochs)
		for _, epoch := range job.Epochs {
			r.Streams += int(epoch.Total)
		}
	}
}

// graphs reads every graph, and reports datasets whose graph is missing.
func (r *report) graphs(reader *store.Reader, s *pecanv1.Snapshot) {
	used := map[string]bool{}
	for _, dataset := range s.Datasets {
		used[dataset.Fingerprint] = true
	}
	stored := map[string]bool{}
	err := reader.Graphs(func(fingerprint string, bytes uint64, damage error) {
		stored[fingerprint] = true
		r.Graphs, r.GraphBytes = r.Graphs+1, r.GraphBytes+bytes
		if !used[fingerprint] {
			r.Unused++
		}
		if damage != nil {
			r.problem(damage)
		}
	})
	if err != nil {
		r.problem(err)
	}
	for _, dataset := range s.Datasets {
		if !stored[dataset.Fingerprint] {
			r.problem(fmt.Errorf("dataset %s: its graph %s is missing", dataset.DatasetId, dataset.Fingerprint))
		}
	}
}

func (r *report) json(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

func (r *report) print(out io.Writer) error {
	condition := "intact"
	if len(r.Problems) > 0 {
		condition = "damaged"
	}
	_, err := fmt.Fprintf(out, "%s is %s\n  cluster   %s, started %d times\n  snapshot  of %d records, %d bytes\n  records   %d after it, the last is %d; acknowledged up to %d\n"+
		"  state     %d datasets, %d clients, %d jobs, %d open epochs with %d streams\n  graphs    %d, %d bytes; %d belong to no dataset\n",
		r.Dir, condition, r.Cluster, r.Starts, r.Snapshot, r.SnapshotBytes, r.Records, r.Last, r.Acknowledged,
		r.Datasets, r.Clients, r.Jobs, r.Epochs, r.Streams, r.Graphs, r.GraphBytes, r.Unused)
	if r.Torn > 0 && err == nil {
		_, err = fmt.Fprintf(out, "  torn      %d bytes of an incomplete write; it was never acknowledged, and the next start discards it\n", r.Torn)
	}
	if r.InvalidSlot && err == nil {
		_, err = fmt.Fprintf(out, "  mark      one of its two slots is invalid: a write was incomplete, or the disk damages data; the other slot is used\n")
	}
	for _, problem := range r.Problems {
		if err == nil {
			_, err = fmt.Fprintf(out, "  problem   %s\n", problem)
		}
	}
	return err
}
