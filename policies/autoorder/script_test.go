package autoorder_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/policies/autoorder"
)

var rewrite = flag.Bool("rewrite", false, "write the current plans into testdata; read the difference before you commit it")

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
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, string(data))
			if got == string(data) {
				return
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("the plans changed (run with -rewrite and read the difference):\n%s", got)
		})
	}
}

func run(t *testing.T, script string) string {
	var out strings.Builder
	var p autoorder.Pipeline
	describe := func(line string) {
		words := split(line)
		switch words[0] {
		case "source":
			p = autoorder.Pipeline{Source: components(t, words[1:]), Constraints: map[[2]int]string{}}
		case "step":
			p.Steps = append(p.Steps, step(t, words[1:]))
		case "constraint":
			i, j := named(t, p, words[1]), named(t, p, words[2])
			p.Constraints[[2]int{i, j}] = words[3]
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	lines := bufio.NewScanner(strings.NewReader(script))
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&out, line)
			fmt.Fprint(&out, answer(t, p, split(line[2:])))
		case strings.HasPrefix(line, "  "):
		default:
			describe(line)
			fmt.Fprintln(&out, line)
		}
	}
	return out.String()
}

func answer(t *testing.T, p autoorder.Pipeline, words []string) string {
	var plan autoorder.Plan
	switch words[0] {
	case "paper":
		plan = autoorder.Paper(p)
	case "cost":
		limits := autoorder.Limits{}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			switch name {
			case "gain":
				limits.MinGain = number(t, value)
			case "prefixes":
				limits.MaxPrefixes = int(number(t, value))
			default:
				t.Fatalf("unknown limit %q", word)
			}
		}
		plan = autoorder.Cost(p, limits)
	default:
		t.Fatalf("unknown policy %q", words[0])
	}
	var out strings.Builder
	for _, i := range plan.Order {
		fmt.Fprintf(&out, "  %-12s %s\n", p.Steps[i].Name, plan.Reasons[i])
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
			s.Seconds = number(t, value) / 1e6
		case "in":
			s.ElementsIn = number(t, value)
		case "out":
			s.ElementsOut = number(t, value)
		case "bytes":
			in, out, _ := strings.Cut(value, ":")
			s.BytesIn, s.BytesOut = number(t, in), number(t, out)
		case "fixed":
			s.Fixed = value
		case "after":
			s.After = components(t, strings.Split(value, ","))
		case "reads":
			for _, c := range strings.Split(value, ",") {
				s.Reads = append(s.Reads, int(number(t, c)))
			}
		case "write":
			s.Writes = append(s.Writes, write(t, value))
		case "share":
			s.FixedShare = number(t, value)
		case "exponent":
			s.Exponent = number(t, value)
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
	w := autoorder.Write{Component: int(number(t, parts[0]))}
	switch parts[1] {
	case "times":
		w.Values = autoorder.Effect{Kind: autoorder.Multiplies, By: number(t, parts[2])}
	case "set":
		w.Values = autoorder.Effect{Kind: autoorder.Sets, By: number(t, parts[2])}
	}
	if len(parts) > 3 {
		w.Width = number(t, parts[3])
	}
	if len(parts) > 4 {
		w.Work = number(t, parts[4])
	}
	return w
}

func components(t *testing.T, words []string) (out []autoorder.Component) {
	for _, word := range words {
		values, width, _ := strings.Cut(word, "x")
		out = append(out, autoorder.Component{Values: number(t, values), Width: number(t, width)})
	}
	return out
}

func named(t *testing.T, p autoorder.Pipeline, name string) int {
	for i := range p.Steps {
		if p.Steps[i].Name == name {
			return i
		}
	}
	t.Fatalf("no step %q", name)
	return 0
}

func number(t *testing.T, text string) float64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// split divides a line at blanks outside of quotes.
func split(line string) (words []string) {
	quoted, word := false, strings.Builder{}
	end := func() {
		if word.Len() > 0 {
			words = append(words, word.String())
			word.Reset()
		}
	}
	for _, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ' ' && !quoted:
			end()
		default:
			word.WriteRune(r)
		}
	}
	end()
	return words
}
