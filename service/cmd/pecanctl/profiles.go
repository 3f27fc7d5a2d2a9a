package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/learned"
)

// mergeBytes is the size from which a request of profiles merge is sent.
const mergeBytes = 1 << 20

// profiles shows, saves or adds what was learned from jobs about datasets.
func profiles(ctx context.Context, o *options, args []string, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "list":
		known, err := exportLearned(ctx, o)
		if err != nil {
			return err
		}
		if o.json {
			value, err := raw(known)
			if err != nil {
				return err
			}
			return encode(out, value)
		}
		showLearned(out, known)
		return nil
	case len(args) == 2 && args[0] == "export":
		return exportTo(ctx, o, args[1], out)
	case len(args) >= 2 && args[0] == "merge":
		return mergeFrom(ctx, o, args[1:], out)
	}
	return fmt.Errorf("profiles wants list, export FILE or merge FILE..., got %q", strings.Join(args, " "))
}

// exportLearned returns all that a dispatcher has learned.
func exportLearned(ctx context.Context, o *options) (*pecanv1.Learned, error) {
	known := &pecanv1.Learned{}
	err := ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) error {
		stream, err := api.ExportLearned(ctx, &pecanv1.ExportLearnedRequest{})
		for err == nil {
			var next *pecanv1.ExportLearnedResponse
			if next, err = stream.Recv(); err == nil {
				proto.Merge(known, next.Learned)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return learnedError(o, "read what dispatcher %s has learned", err)
	})
	return known, err
}

// learnedError explains a failed call.
func learnedError(o *options, what string, err error) error {
	what = fmt.Sprintf(what, o.dispatcher)
	if status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%s: its version keeps no profiles", what)
	}
	if code := status.Code(err); code == codes.InvalidArgument || code == codes.ResourceExhausted {
		return fmt.Errorf("%s: %s", what, reason.From(err).Message)
	}
	return fmt.Errorf("%s: %s; is it running, is this its address, and does --timeout suffice?", what, reason.From(err).Message)
}

// exportTo writes what a dispatcher has learned to a new file.
func exportTo(ctx context.Context, o *options, name string, out io.Writer) error {
	known, err := exportLearned(ctx, o)
	if err != nil {
		return err
	}
	data, err := learned.Format(known)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("profiles export writes a new file: %w", err)
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Close()); err != nil {
		// The operator tries again, and a part of the file is of no use.
		return fmt.Errorf("profiles export: %w", errors.Join(err, os.Remove(name)))
	}
	fmt.Fprintf(out, "%d datasets in %s, %s\n", len(known.Graphs()), name, size(int64(len(data))))
	return nil
}

// mergeFrom sends what files have to a dispatcher. All files are read before the first request.
func mergeFrom(ctx context.Context, o *options, names []string, out io.Writer) error {
	all := &pecanv1.Learned{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("profiles merge: %w", err)
		}
		found, err := learned.Parse(data)
		if err != nil {
			return fmt.Errorf("profiles merge: %s: %w", name, err)
		}
		all = pecanv1.MergeLearned(all, found)
	}
	graphs, sum := len(all.Graphs()), &pecanv1.MergeLearnedResponse{}
	err := ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) error {
		request, bytes, left := &pecanv1.MergeLearnedRequest{Learned: &pecanv1.Learned{}}, 0, graphs
		for _, of := range all.ByGraph() {
			proto.Merge(request.Learned, of)
			bytes += proto.Size(of)
			if left--; bytes < mergeBytes && left > 0 {
				continue
			}
			answer, err := api.MergeLearned(ctx, request)
			if err != nil {
				return learnedError(o, "merge into dispatcher %s", err)
			}
			sum.Graphs += answer.Graphs
			sum.OrdersInUse += answer.OrdersInUse
			request.Learned, bytes = &pecanv1.Learned{}, 0
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d datasets had something new\n", sum.Graphs, graphs)
	if sum.OrdersInUse > 0 {
		fmt.Fprintf(out, "%d orders were left out, because open jobs decide on the order of these datasets; merge again when they have ended\n", sum.OrdersInUse)
	}
	return nil
}

func showLearned(out io.Writer, known *pecanv1.Learned) {
	if len(known.Graphs()) == 0 {
		fmt.Fprintln(out, "nothing was learned yet: a profile is kept at the end of an epoch")
		return
	}
	rows := [][]string{{"FINGERPRINT", "STEPS", "EPOCHS", "ELEMENTS", "CPU", "ORDERS", "PLACEMENTS", "CACHED", "JOBS", "LAST EPOCH"}}
	for fingerprint, of := range known.ByGraph() {
		profile, history := &pecanv1.StoredProfile{}, &pecanv1.StoredHistory{}
		if len(of.Profiles) > 0 {
			profile = of.Profiles[0]
		}
		if len(of.Histories) > 0 {
			history = of.Histories[0]
		}
		var states []string
		for _, o := range of.Orders {
			states = append(states, fmt.Sprintf("%s (%s)", o.State(), pecanv1.Word(o.Tolerance, "ORDER_TOLERANCE_")))
		}
		cpu, last := 0.0, "-"
		for _, node := range profile.Nodes {
			cpu += node.SelfCpuS
		}
		if at := history.LastS(); at > 0 {
			last = time.Unix(at, 0).UTC().Format("2006-01-02 15:04")
		}
		rows = append(rows, []string{
			fmt.Sprintf("%.12s", fingerprint), fmt.Sprint(len(profile.Nodes)), fmt.Sprint(profile.EpochsBegun), fmt.Sprint(profile.EpochElements), seconds(cpu),
			orElse(strings.Join(states, ", "), "-"), fmt.Sprint(len(of.Placements)), cachedSteps(of.Cachings), fmt.Sprint(len(history.Jobs)), last,
		})
	}
	table(out, rows)
}

// cachedSteps returns the steps that the newest decisions cache, one for each type of trainer.
func cachedSteps(known []*pecanv1.StoredCaching) string {
	var steps []string
	for _, c := range known {
		if c.Decision != nil {
			steps = append(steps, orElse(c.Decision.Node, "none"))
		}
	}
	return orElse(strings.Join(slices.Compact(steps), ", "), "-")
}
