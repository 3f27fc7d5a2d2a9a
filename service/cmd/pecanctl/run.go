package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"go.uber.org/multierr"
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
Asks a dispatcher what it is doing.

  status     everything in short: the dispatcher, its workers, its jobs and why any of them waits
  jobs       jobs with their datasets, plans, clients and epochs
  workers    registered workers and the streams they hold
  datasets   registered datasets
  nodes      what each step of a job's dataset did: elements, bytes, and the time of its own
  explain    why the steps of a job, given by name or id, run in the order in which they do: what they cost, what moved, what it gained

Looks at the work directory of a dispatcher that does not run, and changes nothing there. One that runs is asked; or look at a copy.

  store check DIR     reads all of it and applies its records as a start does; says how many of what there are and what is wrong.
                      Exits with 0 when it is whole, 1 when it is damaged, 2 when it could not be looked at
  store inspect DIR   shows the snapshot and the records as text, as far as they can be read; with --json one object a line`

const examples = `
  pecanctl status --dispatcher 127.0.0.1:5050
  pecanctl jobs --dispatcher pecan://10.0.0.7:5050 --json
  pecanctl explain train --dispatcher 10.0.0.7:5050
  pecanctl store check /var/lib/pecan
  pecanctl store inspect /var/lib/pecan --from 4711 --limit 20
  pecanctl store inspect /var/lib/pecan --json | jq 'select(.kind == "lease_granted")'`

type options struct {
	dispatcher string
	json       bool
	timeout    time.Duration
	// records of a store that are shown.
	from, to, limit uint64
}

// views are the sub-commands: what they show as tables, and what of the answer they give as JSON.
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
	if len(args) != 1 {
		return fmt.Errorf("want one of status, jobs, workers, datasets, nodes, explain, store; got %q (see --help)", strings.Join(args, " "))
	}
	show, ok := views()[args[0]]
	if !ok {
		return fmt.Errorf("unknown command %q: want status, jobs, workers, datasets, nodes, explain or store (see --help)", args[0])
	}
	var answer *pecanv1.StatusResponse
	err := ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) (err error) {
		if answer, err = api.Status(ctx, &pecanv1.StatusRequest{}); err != nil {
			return fmt.Errorf("ask dispatcher %s for its status: %s; is it running, and is this its address?", o.dispatcher, reason.From(err).Message)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(out, args[0], answer)
	}
	show(out, answer)
	return nil
}

// explain is the one view that is of a single job.
func explain(ctx context.Context, o *options, args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("explain wants the name or id of one job, got %q: pecanctl jobs lists them", strings.Join(args, " "))
	}
	var answer *pecanv1.ExplainResponse
	err := ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) (err error) {
		answer, err = api.Explain(ctx, &pecanv1.ExplainRequest{Job: args[0]})
		switch {
		case status.Code(err) == codes.Unimplemented:
			return fmt.Errorf("ask dispatcher %s to explain job %q: it is of a version that does not order steps", o.dispatcher, args[0])
		case status.Code(err) == codes.NotFound:
			return fmt.Errorf("ask dispatcher %s: %s; pecanctl jobs lists what there is", o.dispatcher, reason.From(err).Message)
		case err != nil:
			return fmt.Errorf("ask dispatcher %s to explain job %q: %s; is it running, and is this its address?", o.dispatcher, args[0], reason.From(err).Message)
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

// ask calls the dispatcher, and gives up after the timeout.
func ask(ctx context.Context, o *options, call func(context.Context, pecanv1.DispatcherClient) error) error {
	if err := multierr.Append(check.Dial("--dispatcher", o.dispatcher), check.Duration("--timeout", o.timeout, 1)); err != nil {
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

// printJSON gives what the view is about: for status the whole answer, else one list.
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
