package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: ordergraph pairs|steps|barriers|reorder|streams DATASET.pb [OUT NAME...], or ordergraph propose DIRECTORY")
	}
	if args[0] == "propose" {
		return proposeAll(args[1])
	}
	data, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		return err
	}
	switch args[0] {
	case "pairs":
		pairs, err := pairs(graphorder.TraitsOf(g))
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(pairs)
	case "steps":
		var names []string
		for _, s := range graphorder.TraitsOf(g) {
			names = append(names, s.Node)
		}
		return json.NewEncoder(os.Stdout).Encode(names)
	case "barriers":
		var barriers []string
		for _, s := range graphorder.TraitsOf(g) {
			barriers = append(barriers, s.Barrier)
		}
		return json.NewEncoder(os.Stdout).Encode(barriers)
	case "reorder", "streams":
		if len(args) < 3 {
			break
		}
		ordered, err := graphorder.Reorder(g, args[3:])
		if err != nil {
			return err
		}
		if args[0] == "streams" {
			return streams(g, ordered, args[2])
		}
		out, err := ordered.Serialized()
		if err != nil {
			return err
		}
		return os.WriteFile(args[2], out, 0o644)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// streams writes the graphs that trials run: every stream of a job with default options, one element after another.
func streams(g, ordered *graph.Graph, to string) error {
	mode := pecanv1.Mode_MODE_EXACTLY_ONCE
	plan, err := split.MakePlan(g, &pecanv1.JobOptions{Mode: mode}, split.Env{})
	if err != nil {
		return err
	}
	return writeStreams(ordered, plan, rewrite.At{Mode: mode, Serial: true}, to)
}

// pairs returns the steps that may change places if they change the same component. It leaves out barriers.
func pairs(steps []graphorder.Traits) ([][2]int, error) {
	found := [][2]int{}
	for i, a := range steps {
		for j, b := range steps {
			if a.Barrier != "" || b.Barrier != "" {
				continue
			}
			if len(a.Changes) != 1 || len(b.Changes) != 1 {
				return nil, fmt.Errorf("step %s or step %s changes another number of components than one", a.Node, b.Node)
			}
			if ok, _ := a.Changes[0].CommutesWith(b.Changes[0]); ok {
				found = append(found, [2]int{i, j})
			}
		}
	}
	return found, nil
}
