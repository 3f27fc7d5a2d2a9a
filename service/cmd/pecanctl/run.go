package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/cmd/pecanctl/journal"
	"github.com/pecan-ml/pecan/service/internal/check"
)

const about = `
Shows the state of a running dispatcher:

  status     summary: the dispatcher, its workers, its jobs, and why a job waits
  jobs       jobs with their datasets, plans, clients and epochs
  workers    registered workers and their streams
  datasets   registered datasets
  nodes      measurements of each step of a job's dataset: elements, bytes, and its own CPU time
  explain    decisions on a job with their reasons: the order of its steps, its workers, its cached step; takes the job's name or id
  top        redraws jobs and workers until Ctrl-C: how long trainers wait, elements per second, busy workers, cost per hour

Changes the number of workers:

  scale NUMBER        asks the provider for more workers, or removes the workers with the fewest streams after they have handed these
                      over. It prints how many workers are requested, pending, ready and leaving. It ends when that number of workers
                      is ready, or when the provider cannot give more now

Shows and exchanges what was learned from jobs about datasets. A dispatcher keeps that for later jobs:

  profiles list           profiles of steps, decided orders, placements and earlier jobs of each dataset; with --json all of them
  profiles export FILE    writes them to a new file
  profiles merge FILE...  adds the content of files. What the dispatcher has learned itself stays, and open jobs keep their orders

Shows and changes caches:

  cache list          caches with their sizes, what each saves in an epoch, and for how long nobody has used it
  cache verify DIR    reads all segments in DIR (--cache-dir of the workers) and compares them with the records. Exit code 1: some are damaged
  cache pin KEY       protects a cache from eviction; cache unpin KEY ends the protection
  cache rm KEY        removes a cache that no epoch uses
  cache rm DIR --cluster ID
                      removes from DIR the files of a cluster that no longer exists; without --cluster, lists the clusters that have files there
  cache rm DIR --old-names
                      removes from DIR the files whose names have no cluster. Earlier versions wrote such files

Reads the work directory of a dispatcher that is not running, and changes nothing in it:

  store check DIR     reads the whole store and replays its records as a starting dispatcher does; prints counts and problems.
                      Exit code 0: the store is intact; 1: it is damaged; 2: it could not be read
  store inspect DIR   prints the snapshot and the records as text, up to the first unreadable one; with --json one object per line`

const examples = `
  pecanctl status --dispatcher 127.0.0.1:5050
  pecanctl jobs --dispatcher pecan://10.0.0.7:5050 --json
  pecanctl explain train --dispatcher 10.0.0.7:5050
  pecanctl top --interval 1s
  pecanctl scale 8 --dispatcher 10.0.0.7:5050 --provider kubernetes:deployment/pecan-worker
  pecanctl profiles export profiles.learned --dispatcher 10.0.0.7:5050
  pecanctl profiles merge profiles.learned --dispatcher 10.0.0.8:5050
  pecanctl cache list --dispatcher 10.0.0.7:5050
  pecanctl cache rm /mnt/caches --cluster c-0123456789abcdef01234567
  pecanctl store check /var/lib/pecan
  pecanctl store inspect /var/lib/pecan --from 4711 --limit 20
  pecanctl store inspect /var/lib/pecan --json | jq 'select(.kind == "lease_granted")'`

type options struct {
	dispatcher string
	json       bool
	timeout    time.Duration
	// interval and once are flags of "top".
	interval time.Duration
	once     bool
	// provider, kubeconfig and wait are flags of "scale".
	provider, kubeconfig string
	wait                 time.Duration
	// cluster is a flag of "cache rm".
	cluster string
	// oldNames: "cache rm" removes the files whose names have no cluster.
	oldNames bool
	force    bool
	// from, to and limit select the records that "store inspect" shows.
	from, to, limit uint64
}

// views returns the sub-commands that print a table of the status.
func views() map[string]func(io.Writer, *pecanv1.StatusResponse) {
	return map[string]func(io.Writer, *pecanv1.StatusResponse){
		"status": showStatus, "jobs": showJobs, "workers": showWorkers, "datasets": showDatasets, "nodes": showNodes,
	}
}

func run(ctx context.Context, o *options, args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "store" {
		return journal.Run(ctx, journal.Options{JSON: o.json, From: o.from, To: o.to, Limit: o.limit}, args[1:], out)
	}
	if len(args) > 0 && args[0] == "explain" {
		return explain(ctx, o, args[1:], out)
	}
	if len(args) > 0 && args[0] == "scale" {
		return scale(ctx, o, args[1:], out)
	}
	if len(args) > 0 && args[0] == "profiles" {
		return profiles(ctx, o, args[1:], out)
	}
	if len(args) > 0 && args[0] == "cache" {
		return caches(ctx, o, args[1:], out)
	}
	if len(args) > 0 && args[0] == "top" {
		return top(ctx, o, args[1:], out)
	}
	if len(args) != 1 {
		return fmt.Errorf("want one command of status, jobs, workers, datasets, nodes, explain, top, scale, profiles, cache, store; got %q (see --help)", strings.Join(args, " "))
	}
	show, ok := views()[args[0]]
	if !ok {
		return fmt.Errorf("unknown command %q: want status, jobs, workers, datasets, nodes, explain, top, scale, profiles, cache or store (see --help)", args[0])
	}
	answer, err := statusOf(ctx, o)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(out, args[0], answer)
	}
	show(out, answer)
	return nil
}

// explain prints the explanation of one job.
func explain(ctx context.Context, o *options, args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("explain wants the name or id of one job, got %q: pecanctl jobs lists them", strings.Join(args, " "))
	}
	var answer *pecanv1.ExplainResponse
	err := ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) (err error) {
		answer, err = api.Explain(ctx, &pecanv1.ExplainRequest{Job: args[0]})
		switch {
		case status.Code(err) == codes.Unimplemented:
			return fmt.Errorf("explain job %q at dispatcher %s: its version does not order steps", args[0], o.dispatcher)
		case status.Code(err) == codes.NotFound:
			return fmt.Errorf("explain a job at dispatcher %s: %s; pecanctl jobs lists the jobs", o.dispatcher, reason.From(err).Message)
		case err != nil:
			return fmt.Errorf("explain job %q at dispatcher %s: %s; is it running, and is this its address?", args[0], o.dispatcher, reason.From(err).Message)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !o.json {
		showExplain(out, answer, columns(out))
		return nil
	}
	value, err := raw(answer)
	if err != nil {
		return err
	}
	return encode(out, value)
}

// ask calls the dispatcher. The call fails after the timeout.
func ask(ctx context.Context, o *options, call func(context.Context, pecanv1.DispatcherClient) error) error {
	if err := errors.Join(check.Dial("--dispatcher", o.dispatcher), check.Duration("--timeout", o.timeout, 1)); err != nil {
		return err
	}
	address := check.Target(o.dispatcher)
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}))
	if err != nil {
		return fmt.Errorf("reach dispatcher %s: %w", o.dispatcher, err)
	}
	defer conn.Close()
	return call(ctx, pecanv1.NewDispatcherClient(conn))
}

// printJSON prints the view as JSON: the whole answer for status, one list for the others.
func printJSON(out io.Writer, view string, status *pecanv1.StatusResponse) error {
	var value any = json.RawMessage(nil)
	var err error
	switch view {
	case "jobs", "nodes":
		value, err = rawList(status.Jobs)
	case "workers":
		value, err = rawList(status.Workers)
	case "datasets":
		value, err = rawList(status.Datasets)
	default:
		value, err = raw(status)
	}
	if err != nil {
		return err
	}
	return encode(out, value)
}

func encode(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func raw(m proto.Message) (json.RawMessage, error) {
	data, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return data, nil
}

func rawList[M proto.Message](messages []M) ([]json.RawMessage, error) {
	list := make([]json.RawMessage, 0, len(messages))
	for m := range slices.Values(messages) {
		data, err := raw(m)
		if err != nil {
			return nil, err
		}
		list = append(list, data)
	}
	return list, nil
}
