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

// report is what a check found.
type report struct {
	Dir string `json:"dir"`
	// Unread: the store could not be opened, and nothing but the problem is known of it.
	Unread  bool   `json:"unread"`
	Cluster string `json:"cluster"`
	// Snapshot stands for so many records; Records follow it, up to Last. Acknowledged is the last that somebody was told of.
	Snapshot      uint64 `json:"snapshot_records"`
	SnapshotBytes int    `json:"snapshot_bytes"`
	Records       uint64 `json:"records"`
	Last          uint64 `json:"last_record"`
	Acknowledged  uint64 `json:"acknowledged"`
	// SpoiltMark: one of the two places that say what was acknowledged cannot be read.
	SpoiltMark bool `json:"spoilt_mark"`
	// What the records add up to.
	Starts   uint64 `json:"starts"`
	Datasets int    `json:"datasets"`
	Clients  int    `json:"clients"`
	Jobs     int    `json:"jobs"`
	Epochs   int    `json:"open_epochs"`
	Streams  int    `json:"open_streams"`
	// Graphs are stored, of which Unused belong to no dataset.
	Graphs     int    `json:"graphs"`
	GraphBytes uint64 `json:"graph_bytes"`
	Unused     int    `json:"unused_graphs"`
	// Torn bytes at the end of the log were never acknowledged.
	Torn     int64    `json:"torn_bytes"`
	Problems []string `json:"problems"`
}

// check reads everything, and gives an error when something is wrong.
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
	if f.Acknowledged, f.SpoiltMark, err = r.Acknowledged(); err != nil {
		f.problem(err)
	}
	if f.Last < f.Acknowledged {
		f.problem(fmt.Errorf("records up to %d were acknowledged, the last that can be read is %d", f.Acknowledged, f.Last))
	}
	tail := r.Tail()
	if tail.Torn {
		f.Torn = tail.Size - tail.End
	}
	if tail.Wrong != "" {
		f.problem(fmt.Errorf("%s: %s", tail.Log, tail.Wrong))
	}
	return f, nil
}

func (f *report) problem(err error) { f.Problems = append(f.Problems, err.Error()) }

// replay applies the snapshot and the records, as a dispatcher does that starts.
func (f *report) replay(ctx context.Context, r *store.Reader) *durable.State {
	state := durable.NewState()
	data, stands, err := r.Snapshot()
	f.Snapshot, f.SnapshotBytes, f.Last = stands, len(data), stands
	if err != nil {
		f.problem(err)
		return state
	}
	if data != nil {
		restored, err := durable.Restore(data)
		if err != nil {
			f.problem(fmt.Errorf("the snapshot is not understood: %w", err))
			return state
		}
		if state = restored; state.Applied() != stands {
			f.problem(fmt.Errorf("the snapshot says that it stands for %d records, and is of %d", stands, state.Applied()))
		}
	}
	broken := false
	err = r.Records(func(number uint64, data []byte) error {
		f.Records, f.Last = f.Records+1, number
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
			f.problem(fmt.Errorf("record %d: %w; those behind it were read and not applied", number, err))
		}
		return ctx.Err()
	})
	if err != nil {
		f.problem(err)
	}
	return state
}

func (f *report) count(s *pecanv1.Snapshot) {
	f.Cluster, f.Starts = s.ClusterId, s.Incarnation
	f.Datasets, f.Clients, f.Jobs = len(s.Datasets), len(s.Clients), len(s.Jobs)
	for _, job := range s.Jobs {
		f.Epochs += len(job.Epochs)
		for _, epoch := range job.Epochs {
			f.Streams += len(epoch.Streams)
		}
	}
}

// graphs reads every graph, and looks for those that datasets name.
func (f *report) graphs(r *store.Reader, s *pecanv1.Snapshot) {
	wanted := map[string]bool{}
	for _, dataset := range s.Datasets {
		wanted[dataset.Fingerprint] = true
	}
	there := map[string]bool{}
	err := r.Graphs(func(fingerprint string, bytes uint64, wrong error) {
		there[fingerprint] = true
		f.Graphs, f.GraphBytes = f.Graphs+1, f.GraphBytes+bytes
		if !wanted[fingerprint] {
			f.Unused++
		}
		if wrong != nil {
			f.problem(wrong)
		}
	})
	if err != nil {
		f.problem(err)
	}
	for _, dataset := range s.Datasets {
		if !there[dataset.Fingerprint] {
			f.problem(fmt.Errorf("dataset %s: its graph %s is missing", dataset.DatasetId, dataset.Fingerprint))
		}
	}
}

func (f *report) json(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(f)
}

func (f *report) print(out io.Writer) error {
	word := "whole"
	if len(f.Problems) > 0 {
		word = "damaged"
	}
	_, err := fmt.Fprintf(out, "%s is %s\n  cluster   %s, started %d times\n  snapshot  of %d records, %d bytes\n  records   %d behind it, the last is %d; acknowledged up to %d\n"+
		"  state     %d datasets, %d clients, %d jobs, %d open epochs with %d streams\n  graphs    %d, %d bytes; %d belong to no dataset\n",
		f.Dir, word, f.Cluster, f.Starts, f.Snapshot, f.SnapshotBytes, f.Records, f.Last, f.Acknowledged,
		f.Datasets, f.Clients, f.Jobs, f.Epochs, f.Streams, f.Graphs, f.GraphBytes, f.Unused)
	if f.Torn > 0 && err == nil {
		_, err = fmt.Fprintf(out, "  torn      %d bytes of a write that was cut off; nobody was told of it, and the next start leaves it out\n", f.Torn)
	}
	if f.SpoiltMark && err == nil {
		_, err = fmt.Fprintf(out, "  mark      one of its two places is spoilt: a write was cut off, or the disk damages what it holds; the other one is used\n")
	}
	for _, problem := range f.Problems {
		if err == nil {
			_, err = fmt.Fprintf(out, "  problem   %s\n", problem)
		}
	}
	return err
}
