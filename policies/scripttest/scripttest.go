// Package scripttest runs scripts that describe inputs of a policy and hold its decisions, for tests.
//
// A script is a text file in testdata. Its lines describe an input; a part of a line in quotes is one word. A line that
// begins with "> " asks a policy, and the lines after it that begin with two blanks are the answer. "#" begins a comment. With
// the flag -rewrite, the answers in the files become the current ones.
package scripttest

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the current decisions into testdata; read the difference before you commit it")

// Input has the values from the lines of a script so far.
type Input interface {
	// Describe takes the words of a line.
	Describe(t *testing.T, words []string)
	// Answer asks the policy that the words name, and returns its decision in lines that begin with two blanks.
	Answer(t *testing.T, words []string) string
}

// Run runs the scripts in testdata, each with an empty input at its begin, and compares the decisions with those in the files.
func Run(t *testing.T, empty func() Input) {
	t.Helper()
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
			got := answered(t, empty(), string(data))
			if got == string(data) {
				return
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("the decisions changed (run with -rewrite and read the difference):\n%s", got)
		})
	}
}

// answered returns a script with the current answers.
func answered(t *testing.T, input Input, script string) string {
	var out strings.Builder
	lines := bufio.NewScanner(strings.NewReader(script))
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&out, line)
			fmt.Fprint(&out, input.Answer(t, split(line[2:])))
		case strings.HasPrefix(line, "  "):
		default:
			input.Describe(t, split(line))
			fmt.Fprintln(&out, line)
		}
	}
	return out.String()
}

// Number returns the number that a text names.
func Number(t *testing.T, text string) float64 {
	t.Helper()
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
