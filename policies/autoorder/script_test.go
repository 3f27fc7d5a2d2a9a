package autoorder_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/policies/autoorder"
	"github.com/pecan-ml/pecan/policies/scripttest"
)

// TestScripts runs the scripts in testdata. These lines describe a pipeline:
//
//	source 100000x1 1x8              components: values by bytes of a value
//	step crop us=300 reads=0 write=0:set:150528
//	step batch fixed="it combines several elements into one" out=0.01
//	constraint flip crop "it moves the values that flip removes"
//
// A line that begins with "> " runs a policy. The lines after it are its order with the reasons. A line
// "source" begins another pipeline.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func() scripttest.Input { return &script{} })
}

// script is the pipeline that the lines so far describe.
type script struct{ autoorder.Pipeline }

// Describe implements scripttest.Input.
func (s *script) Describe(t *testing.T, words []string) {
	switch words[0] {
	case "source":
		s.Pipeline = autoorder.Pipeline{Source: components(t, words[1:]), Constraints: map[[2]int]string{}}
	case "step":
		s.Steps = append(s.Steps, step(t, words[1:]))
	case "other":
		s.Other = s.run(t, words[1:])
	case "constraint":
		i, j := s.named(t, words[1]), s.named(t, words[2])
		s.Constraints[[2]int{i, j}] = words[3]
	default:
		t.Fatalf("unknown line %q", words)
	}
}

// Answer implements scripttest.Input.
func (s *script) Answer(t *testing.T, words []string) string {
	var plan autoorder.Plan
	switch words[0] {
	case "paper":
		plan = autoorder.Paper(s.Pipeline)
	case "cost":
		limits := autoorder.Limits{}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			switch name {
			case "gain":
				limits.MinGain = scripttest.Number(t, value)
			case "prefixes":
				limits.MaxPrefixes = int(scripttest.Number(t, value))
			default:
				t.Fatalf("unknown limit %q", word)
			}
		}
		plan = autoorder.Cost(s.Pipeline, limits)
	default:
		t.Fatalf("unknown policy %q", words[0])
	}
	var out strings.Builder
	for _, i := range plan.Order {
		fmt.Fprintf(&out, "  %-12s %s\n", s.Steps[i].Name, plan.Reasons[i])
	}
	if plan.Before > 0 {
		fmt.Fprintf(&out, "  %.4g -> %.4g µs\n", 1e6*plan.Before, 1e6*plan.After)
	}
	return out.String()
}

// step reads a step: name us=microseconds per element, in=1 out=1, bytes=in:out, fixed="reason",
// after=100x4,1x8, reads=0,1, write=component:keep|times|set:by[:width[:work]], copies, share=fixed share,
// exponent=1, slow.
func step(t *testing.T, words []string) autoorder.Step {
	s := autoorder.Step{Name: words[0]}
	s.ElementsIn, s.ElementsOut = 1, 1
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "us":
			s.Seconds = scripttest.Number(t, value) / 1e6
		case "in":
			s.ElementsIn = scripttest.Number(t, value)
		case "out":
			s.ElementsOut = scripttest.Number(t, value)
		case "bytes":
			in, out, _ := strings.Cut(value, ":")
			s.BytesIn, s.BytesOut = scripttest.Number(t, in), scripttest.Number(t, out)
		case "fixed":
			s.Fixed = value
		case "after":
			s.After = components(t, strings.Split(value, ","))
		case "reads":
			for _, c := range strings.Split(value, ",") {
				s.Reads = append(s.Reads, int(scripttest.Number(t, c)))
			}
		case "write":
			s.Writes = append(s.Writes, write(t, value))
		case "share":
			s.FixedShare = scripttest.Number(t, value)
		case "exponent":
			s.Exponent = scripttest.Number(t, value)
		case "slow":
			s.Slow = true
		case "copies":
			s.Copies = true
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	s.Seconds *= s.ElementsIn
	return s
}

func write(t *testing.T, text string) autoorder.Write {
	parts := strings.Split(text, ":")
	w := autoorder.Write{Component: int(scripttest.Number(t, parts[0]))}
	switch parts[1] {
	case "times":
		w.Values = autoorder.Effect{Kind: autoorder.Multiplies, By: scripttest.Number(t, parts[2])}
	case "set":
		w.Values = autoorder.Effect{Kind: autoorder.Sets, By: scripttest.Number(t, parts[2])}
	}
	if len(parts) > 3 {
		w.Width = scripttest.Number(t, parts[3])
	}
	if len(parts) > 4 {
		w.Work = scripttest.Number(t, parts[4])
	}
	return w
}

func components(t *testing.T, words []string) (out []autoorder.Component) {
	for _, word := range words {
		values, width, _ := strings.Cut(word, "x")
		out = append(out, autoorder.Component{Values: scripttest.Number(t, values), Width: scripttest.Number(t, width)})
	}
	return out
}

// run reads the steps in another order: name:microseconds per element, 1,000 elements each.
func (s *script) run(t *testing.T, words []string) *autoorder.Run {
	run := &autoorder.Run{Measurements: make([]autoorder.Measurements, len(s.Steps))}
	for _, word := range words {
		name, us, _ := strings.Cut(word, ":")
		at := s.named(t, name)
		run.Order = append(run.Order, at)
		run.Measurements[at] = autoorder.Measurements{ElementsIn: 1000, ElementsOut: 1000, Seconds: scripttest.Number(t, us) / 1000}
	}
	return run
}

func (s *script) named(t *testing.T, name string) int {
	for i := range s.Steps {
		if s.Steps[i].Name == name {
			return i
		}
	}
	t.Fatalf("no step %q", name)
	return 0
}
