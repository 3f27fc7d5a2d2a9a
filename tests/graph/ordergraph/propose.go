package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	"github.com/pecan-ml/pecan/service/graph"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// request asks for one proposal for each of several measurements of a dataset. The command reads it from NAME.json and the dataset from
// NAME.pb. It writes the answers to NAME.out.json, and each dataset with another order to NAME.<number>.pb.
type request struct {
	Mode      string `json:"mode"`
	Order     string `json:"order"`
	Tolerance string `json:"tolerance"`
	// Metrics are measurements of the source and of each step: elements, seconds, and bytes per element after the step.
	Metrics [][][3]float64 `json:"metrics"`
	// Streams requests the graphs of all streams, as workers run them. The files are named as by cutgraph:
	// NAME.registered.e0.s<stream>.A.pb (and B), and NAME.<number>.e0.s<stream>.A.pb for other orders.
	Streams bool `json:"streams"`
	// Carry is the number of streams of a plan whose batches go on from pass to pass; 0 for other plans.
	Carry int32 `json:"carry"`
	// Walks is the maximum number of further allowed orders, which a trainer's position can name. Random neighbours change places, as far
	// as the ordering constraints allow it without measurements.
	Walks int    `json:"walks"`
	Seed  uint64 `json:"seed"`
}

type answer struct {
	// Order has the numbers of the steps. It is empty if no step moves.
	Order   []int    `json:"order"`
	Why     string   `json:"why"`
	Reasons []string `json:"reasons"`
	Traits  []string `json:"traits"`
	Before  float64  `json:"before"`
	After   float64  `json:"after"`
}

func proposeAll(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		name, isOut := strings.CutSuffix(strings.TrimSuffix(file, ".json"), ".out")
		if isOut {
			continue
		}
		if err := proposeOne(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func proposeOne(name string) error {
	data, err := os.ReadFile(name + ".pb")
	if err != nil {
		return err
	}
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		return err
	}
	text, err := os.ReadFile(name + ".json")
	if err != nil {
		return err
	}
	var asked request
	if err := json.Unmarshal(text, &asked); err != nil {
		return err
	}
	options := &pecanv1.JobOptions{
		Mode: pecanv1.Mode(pecanv1.Mode_value["MODE_"+asked.Mode]), AllowNondeterministic: true,
		Order:          pecanv1.Order(pecanv1.Order_value["ORDER_"+asked.Order]),
		OrderTolerance: pecanv1.OrderTolerance(pecanv1.OrderTolerance_value["ORDER_TOLERANCE_"+asked.Tolerance]),
		Streams:        asked.Carry,
	}
	plan, err := split.MakePlan(g, options, split.Env{Carry: asked.Carry > 0})
	if err == nil && !asked.Streams && options.GetMode() == pecanv1.Mode_MODE_EXACTLY_ONCE && len(plan.GetKeyed()) > 0 {
		// The test runs the ordered graph without keys. A plan with one stream has none in this mode.
		options.Streams = 1
		plan, err = split.MakePlan(g, options, split.Env{})
	}
	if err != nil {
		return err
	}
	if plan.GetCarry() != (asked.Carry > 0) {
		return fmt.Errorf("the plan is %v", plan)
	}
	if asked.Streams {
		if err := writeCut(g, plan, options.GetMode(), name+".registered"); err != nil {
			return err
		}
	}
	answers := []answer{}
	for i, values := range asked.Metrics {
		proposal, err := ordering.Propose(g, plan, options, ordering.Measured{Nodes: metrics(g, values)})
		if err != nil {
			return err
		}
		answers = append(answers, toAnswer(proposal))
		if len(proposal.Order) == 0 {
			continue
		}
		ordered, err := graphorder.Reorder(g, proposal.Order)
		if err != nil {
			return err
		}
		if err := write(ordered, plan, &asked, fmt.Sprintf("%s.%d", name, i)); err != nil {
			return err
		}
	}
	for _, order := range walk(g, plan, options, &asked) {
		ordered, err := graphorder.Reorder(g, order)
		if err != nil {
			return err
		}
		if err := write(ordered, plan, &asked, fmt.Sprintf("%s.%d", name, len(answers))); err != nil {
			return err
		}
		answers = append(answers, answer{Order: numbered(g, order), Why: "a position names it", Reasons: []string{}, Traits: []string{}})
	}
	out, err := json.Marshal(answers)
	if err != nil {
		return err
	}
	return os.WriteFile(name+".out.json", out, 0o644)
}

// walk returns orders at a growing distance from the registered one, each once.
func walk(g *graph.Graph, plan *pecanv1.Plan, options *pecanv1.JobOptions, asked *request) (found [][]string) {
	var at []string
	var moving []int
	for i, t := range graphorder.TraitsOf(g) {
		at = append(at, t.Node)
		if !t.Passes && t.Barrier == "" {
			moving = append(moving, i)
		}
	}
	if len(moving) < 2 {
		return nil
	}
	rng := rand.New(rand.NewPCG(asked.Seed, 0))
	seen := map[string]bool{strings.Join(at, " "): true}
	for range asked.Walks {
		for range moving {
			next, k := slices.Clone(at), rng.IntN(len(moving)-1)
			next[moving[k]], next[moving[k+1]] = at[moving[k+1]], at[moving[k]]
			if _, err := ordering.Named(g, plan, options, pecanv1.NewEpochOrder(plan, next)); err == nil {
				at = next
			}
		}
		if key := strings.Join(at, " "); !seen[key] {
			seen[key] = true
			found = append(found, at)
		}
	}
	return found
}

func write(ordered *graph.Graph, plan *pecanv1.Plan, asked *request, to string) error {
	out, err := ordered.Serialized()
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".pb", out, 0o644); err != nil || !asked.Streams {
		return err
	}
	return writeCut(ordered, plan, pecanv1.Mode(pecanv1.Mode_value["MODE_"+asked.Mode]), to)
}

// writeCut writes the graphs of all streams, with the closing stream and the second graphs of streams that join batches.
func writeCut(g *graph.Graph, plan *pecanv1.Plan, mode pecanv1.Mode, to string) error {
	text, err := protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(plan)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".plan.json", text, 0o644); err != nil {
		return err
	}
	streams := int(plan.GetNumStreams())
	if plan.GetBatchStrategy() != pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT {
		streams++
	}
	for stream := range streams {
		graphs, err := rewrite.Instantiate(g, plan, rewrite.At{Stream: stream, Epoch: 1, Seed: 5, Mode: mode, Source: -1, Threads: 1})
		if err != nil {
			return err
		}
		prefix := fmt.Sprintf("%s.e0.s%d", to, stream)
		if err := os.WriteFile(prefix+".A.pb", graphs.A, 0o644); err != nil {
			return err
		}
		if graphs.B == nil {
			continue
		}
		if err := os.WriteFile(prefix+".B.pb", graphs.B, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writeStreams writes the graphs of all streams. It does not support datasets whose streams join batches.
func writeStreams(g *graph.Graph, plan *pecanv1.Plan, at rewrite.At, to string) error {
	at.Epoch, at.Seed, at.Source, at.Threads = 1, 5, -1, 1
	for at.Stream = range int(plan.GetNumStreams()) {
		graphs, err := rewrite.Instantiate(g, plan, at)
		if err != nil {
			return err
		}
		if err := os.WriteFile(fmt.Sprintf("%s.s%d.pb", to, at.Stream), graphs.A, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func metrics(g *graph.Graph, values [][3]float64) (nodes []*pecanv1.NodeMetrics) {
	steps := graphorder.TraitsOf(g)
	for i, f := range values {
		if i > len(steps) || len(steps) == 0 {
			break
		}
		name := steps[0].Input
		if i > 0 {
			name = steps[i-1].Node
		}
		nodes = append(nodes, &pecanv1.NodeMetrics{Node: name, Elements: uint64(f[0]), SelfCpuS: f[1], BytesOut: uint64(f[0] * f[2])})
	}
	return nodes
}

func toAnswer(proposal *ordering.Proposal) answer {
	a := answer{Order: []int{}, Why: proposal.Why, Before: proposal.PredictedBefore, After: proposal.PredictedAfter}
	numbers := map[string]int{}
	for i, s := range proposal.Steps {
		numbers[s.GetNode()] = i
		a.Reasons = append(a.Reasons, s.GetReason())
		a.Traits = append(a.Traits, strings.Join(s.GetTraits(), ", "))
	}
	for _, name := range proposal.Order {
		a.Order = append(a.Order, numbers[name])
	}
	return a
}

// numbered returns the steps of an order as positions in the registered order.
func numbered(g *graph.Graph, order []string) (numbers []int) {
	places := map[string]int{}
	for i, t := range graphorder.TraitsOf(g) {
		places[t.Node] = i
	}
	for _, name := range order {
		numbers = append(numbers, places[name])
	}
	return numbers
}
