package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestTheLogOfDecisionsKeepsTheLastLinesWithinItsBound(t *testing.T) {
	name := filepath.Join(t.TempDir(), "decisions")
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var log *decisionsLog
	for n := range 25 {
		// A dispatcher that restarts continues with the file.
		if n%7 == 0 {
			var err error
			if log, err = openDecisionsLog(name, 50); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := fmt.Fprintf(log, "line %2d...\n", n); err != nil {
			t.Fatal(err)
		}
	}
	// A line has 11 bytes, so four fit.
	want := ""
	for n := 20; n < 25; n++ {
		if n == 24 {
			if got := read(name + ".1"); got != want {
				t.Errorf("the earlier file has %q, want %q", got, want)
			}
			want = ""
		}
		want += fmt.Sprintf("line %2d...\n", n)
	}
	if got := read(name); got != want {
		t.Errorf("the file has %q, want %q", got, want)
	}
	// A line above the bound has a file of its own.
	for range 2 {
		if _, err := log.Write(append(bytes.Repeat([]byte("x"), 80), '\n')); err != nil {
			t.Fatal(err)
		}
	}
	if one, other := len(read(name)), len(read(name+".1")); one != 81 || other != 81 {
		t.Errorf("two long lines are in files of %d and %d bytes", one, other)
	}
}

// A service manager redirects /dev/stdout to a file, and logs of containers are often links.
func TestALinkAsLogOfDecisionsStays(t *testing.T) {
	dir := t.TempDir()
	name, target := filepath.Join(dir, "link"), filepath.Join(dir, "decisions")
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
	log, err := openDecisionsLog(name, 5)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := fmt.Fprintln(log, "a line"); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(target); err != nil || len(text) != 21 {
		t.Errorf("the target of the link has %q: %v", text, err)
	}
	if found, err := os.ReadDir(dir); err != nil || len(found) != 2 {
		t.Errorf("there are %v: %v", found, err)
	}
}

func TestALogOfDecisionsThatCannotBeMovedKeepsItsLines(t *testing.T) {
	name := filepath.Join(t.TempDir(), "decisions")
	log, err := openDecisionsLog(name, 5)
	if err != nil {
		t.Fatal(err)
	}
	// A directory with a file cannot be replaced.
	if err := os.MkdirAll(filepath.Join(name+".1", "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	for n, failed := range []bool{false, true, true} {
		if _, err := fmt.Fprintln(log, "four"); (err != nil) != failed {
			t.Errorf("line %d: %v", n, err)
		}
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != "four\nfour\nfour\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

func TestALogOfDecisionsWithoutABoundStaysOneFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "decisions")
	for _, c := range []struct {
		name string
		most int64
	}{{name, 0}, {os.DevNull, 5}} {
		log, err := openDecisionsLog(c.name, c.most)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if _, err := fmt.Fprintln(log, "four"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(c.name + ".1"); !os.IsNotExist(err) {
			t.Errorf("%s.1 exists: %v", c.name, err)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Size() != 500 {
		t.Errorf("%v, %v", info, err)
	}
}
