package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

var rewrite = flag.Bool("rewrite", false, "write the output of explain to testdata; read the difference before you commit it")

// recorded returns a recorded response of a dispatcher.
func recorded(t *testing.T, name string) *pecanv1.ExplainResponse {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "explain_"+name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	e := &pecanv1.ExplainResponse{}
	if err := protojson.Unmarshal(data, e); err != nil {
		t.Fatal(err)
	}
	return e
}

// The Python package shows the same text, and its tests read the same files.
func TestExplainOutputMatchesGoldenFiles(t *testing.T) {
	for _, name := range []string{"adopted", "piloted", "rolled_back", "refused", "off", "measuring", "placed", "unpriced", "candidates", "cached", "uncached"} {
		for _, width := range []int{120, 60, 40} {
			var out bytes.Buffer
			showExplain(&out, recorded(t, name), width)
			file := filepath.Join("testdata", fmt.Sprintf("explain_%s.%d.txt", name, width))
			if *rewrite {
				if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if out.String() != string(want) {
				t.Errorf("%s: the output differs (run with -rewrite and read the difference):\n%s", file, out.String())
			}
			for line := range strings.Lines(out.String()) {
				// A table that has no room for its last column has no room for fewer columns either.
				if broad := breadth(strings.TrimSuffix(line, "\n")); width == 120 && broad > width {
					t.Errorf("%s: a line of %d columns: %q", name, broad, line)
				}
			}
			if strings.ContainsAny(out.String(), "\x1b\u202e") {
				t.Errorf("%s: control characters are printed", name)
			}
		}
	}
}

func TestAsFewStepsAsPossibleAreMarkedAsMoved(t *testing.T) {
	for _, c := range []struct{ positions, moved []int }{
		{nil, nil}, {[]int{0}, nil}, {[]int{0, 1, 2}, nil},
		{[]int{1, 0}, []int{1}}, {[]int{1, 2, 0}, []int{2}}, {[]int{2, 0, 1}, []int{0}}, {[]int{0, 3, 1, 2}, []int{1}}, {[]int{2, 1, 0}, []int{1, 2}},
	} {
		var moved []int
		for i, is := range movedOf(c.positions) {
			if is {
				moved = append(moved, i)
			}
		}
		if !slices.Equal(moved, c.moved) {
			t.Errorf("%v: moved %v, want %v", c.positions, moved, c.moved)
		}
	}
	// Duplicate positions are not a plan.
	if got := positionsOf([]*pecanv1.ExplainedStep{{Place: 1}, {Place: 1}}); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("positions %v", got)
	}
}

func TestWrapAndClipCountColumns(t *testing.T) {
	if got := wrap("ab cde 画像の 大 unbrokenword", 6); !slices.Equal(got, []string{"ab cde", "画像の", "大", "unbrok", "enword"}) {
		t.Errorf("%q", got)
	}
	if got := wrap("", 6); !slices.Equal(got, []string{""}) {
		t.Errorf("%q", got)
	}
	for text, want := range map[string]string{"short": "short", "ParallelMapDataset/_17": "Para…/_17", "画像の大きさを": "画像…さを"} {
		if got := clip(text, 9); got != want || breadth(got) > 9 {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestExplainTakesOneJob(t *testing.T) {
	address := serve(t)
	for name, c := range map[string]struct {
		args []string
		json bool
		want string
	}{
		"a job":     {[]string{"explain", "train"}, false, "state  off"},
		"as JSON":   {[]string{"explain", "train"}, true, `"state": "off"`},
		"no job":    {[]string{"explain"}, false, "pecanctl jobs lists them"},
		"two":       {[]string{"explain", "a", "b"}, false, `got "a b"`},
		"a strange": {[]string{"explain", "strange"}, false, `there is no job "strange"; pecanctl jobs lists the jobs`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), &options{dispatcher: address, timeout: 10 * time.Second, json: c.json}, c.args, &out)
			if said := fmt.Sprint(out.String(), err); !strings.Contains(said, c.want) {
				t.Errorf("%q does not contain %q", said, c.want)
			}
		})
	}
}
