// Command cutgraph plans serialised datasets and writes the graphs of all their streams, for the oracle tests.
//
// For each NAME.pb in the directory given, with options in NAME.json, it writes NAME.plan.json and the graphs
// NAME.e<epoch>.s<stream>.A.pb (and .B.pb). On an error it writes NAME.error.json, with reason and message. If a cached step is
// stored by parts, it writes their graphs too.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/extents"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

type request struct {
	Mode          string `json:"mode"`
	Sharding      string `json:"sharding"`
	StaticWorkers int    `json:"static_workers"`
	// Streams is S that the job asks for; 0 lets the plan choose.
	Streams int32 `json:"streams"`
	// Cache is which steps may be cached; "" leaves it to the default.
	Cache  string `json:"cache"`
	Seed   uint64 `json:"seed"`
	Epochs int    `json:"epochs"`
	// Extents divides large record files into extents before the dataset is planned. FileBytes is their size.
	Extents   bool  `json:"extents"`
	FileBytes int64 `json:"file_bytes"`
	// OffStreams is how many whole copies to write when sharding is off.
	OffStreams int `json:"off_streams"`
	// Starts are indices other than 0 at which streams of epoch 0 begin as well.
	Starts []uint64 `json:"starts"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: cutgraph DIRECTORY")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	for _, options := range files {
		base := strings.TrimSuffix(options, ".json")
		if strings.Contains(filepath.Base(base), ".") {
			continue
		}
		if err := one(base); err != nil {
			detail, _ := json.Marshal(map[string]string{"reason": string(reason.From(err).Reason), "message": err.Error()})
			if err := os.WriteFile(base+".error.json", detail, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func one(base string) error {
	var req request
	raw, err := os.ReadFile(base + ".json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &req); err != nil {
		return err
	}
	data, err := os.ReadFile(base + ".pb")
	if err != nil {
		return err
	}
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		return err
	}
	if req.Extents {
		divided, _, err := extents.Divide(context.Background(), g)
		if err != nil {
			return err
		}
		if divided == nil {
			return errors.New("the dataset is not divided into extents")
		}
		if g, err = graph.Parse(divided, graph.Limits{}); err != nil {
			return err
		}
	}
	opts := &pecanv1.JobOptions{
		Mode:     pecanv1.Mode(pecanv1.Mode_value["MODE_"+req.Mode]),
		Sharding: pecanv1.Sharding(pecanv1.Sharding_value["SHARDING_"+req.Sharding]),
		Streams:  req.Streams,
		Cache:    pecanv1.Cache(pecanv1.Cache_value["CACHE_"+strings.ToUpper(req.Cache)]),
	}
	plan, err := split.MakePlan(g, opts, split.Env{StaticWorkers: req.StaticWorkers, FileBytes: req.FileBytes})
	if err != nil {
		return err
	}
	text, err := protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(plan)
	if err != nil {
		return err
	}
	if err := os.WriteFile(base+".plan.json", text, 0o644); err != nil {
		return err
	}
	streams := int(plan.TotalStreams())
	if streams == 0 {
		streams = req.OffStreams
	}
	for epoch := 0; epoch < max(1, req.Epochs); epoch++ {
		for s := 0; s < streams; s++ {
			at := rewrite.At{Stream: s, Epoch: uint64(epoch), Seed: req.Seed, Mode: opts.Mode, Source: -1, Threads: 1}
			graphs, err := rewrite.Instantiate(g, plan, at)
			if err != nil {
				return err
			}
			if err := write(fmt.Sprintf("%s.e%d.s%d", base, epoch, s), graphs); err != nil {
				return err
			}
			if err := writeParts(base, g, plan, at); err != nil {
				return err
			}
		}
	}
	if plan.GetResume().GetStrategy() <= pecanv1.Resume_RECOMPUTE {
		return nil
	}
	for _, start := range req.Starts {
		for s := 0; s < int(plan.NumStreams); s++ {
			at := rewrite.At{Stream: s, Start: start, Seed: req.Seed, Mode: opts.Mode, Source: -1, Threads: 1}
			graphs, err := rewrite.Instantiate(g, plan, at)
			if err != nil {
				return err
			}
			if err := write(fmt.Sprintf("%s.i%d.s%d", base, start, s), graphs); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeParts writes the parts of a stream, and the graph of each part: NAME.e<epoch>.s<stream>.parts.json and
// NAME.part<number>.pb. It writes nothing if the plan's cached step is not stored by parts.
func writeParts(base string, g *graph.Graph, plan *pecanv1.Plan, at rewrite.At) error {
	if plan.GetCache().GetParts() == 0 || at.Stream >= int(plan.NumStreams) {
		return nil
	}
	at.Cached = plan.GetCache()
	graphs, err := rewrite.Instantiate(g, plan, at)
	if err != nil {
		return err
	}
	list, _ := json.Marshal(graphs.Parts)
	if err := os.WriteFile(fmt.Sprintf("%s.e%d.s%d.parts.json", base, at.Epoch, at.Stream), list, 0o644); err != nil {
		return err
	}
	for _, part := range graphs.Parts {
		at.Part = &part
		if graphs, err = rewrite.Instantiate(g, plan, at); err != nil {
			return err
		}
		path := fmt.Sprintf("%s.part%d.pb", base, part)
		if known, err := os.ReadFile(path); err == nil && !bytes.Equal(known, graphs.UpstreamOfCache) {
			return fmt.Errorf("part %d depends on the stream or the epoch", part)
		}
		if err := os.WriteFile(path, graphs.UpstreamOfCache, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func write(prefix string, graphs *rewrite.StreamGraphs) error {
	if err := os.WriteFile(prefix+".A.pb", graphs.A, 0o644); err != nil || graphs.B == nil {
		return err
	}
	return os.WriteFile(prefix+".B.pb", graphs.B, 0o644)
}
