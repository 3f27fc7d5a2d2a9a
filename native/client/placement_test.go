package client

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// lines is a log that tests read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// about returns the lines that contain a text.
func (l *lines) about(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func TestEachChangeOfThePlacementIsLoggedOnce(t *testing.T) {
	said := &lines{}
	d := startDispatcher(t)
	open(t, d, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: LevelNotice}))
	})
	decide := func(remote, local uint32, converged bool, why string) {
		t.Helper()
		d.update(func() { d.placement = &pecanv1.Placement{Remote: remote, Local: local, Converged: converged, Why: why} })
		answered := look(d, func() int { return len(d.heartbeats) })
		eventually(t, "three heartbeats are answered", func() bool { return look(d, func() bool { return len(d.heartbeats) >= answered+3 }) })
	}
	decide(1, 0, false, "the search begins")
	decide(6, 0, false, "6 remote promises 40 %")
	decide(6, 0, false, "another reason, and no change")
	decide(6, 0, true, "no other promises more")
	decide(6, 0, true, "nothing changed")
	decide(9, 2, false, "the demand rose")
	want := []string{
		"the placement is 1 remote and 0 local workers: the search begins",
		"the placement changed from 1 remote and 0 local workers to 6 remote and 0 local workers: 6 remote promises 40 %",
		"the placement stays at 6 remote and 0 local workers: no other promises more",
		"the placement changed from 6 remote and 0 local workers to 9 remote and 2 local workers: the demand rose",
	}
	got := said.about("placement")
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), strings.Join(got, ""))
	}
	for i, line := range got {
		if !strings.Contains(line, want[i]) {
			t.Errorf("line %d is %q, want %q", i, line, want[i])
		}
	}
}

func TestALateAnswerDoesNotTakeThePlacementBack(t *testing.T) {
	said := &lines{}
	job := open(t, startDispatcher(t), func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(said, nil)) })
	for _, answer := range []struct {
		heartbeat uint64
		remote    uint32
	}{{1_000_001, 1}, {1_000_003, 2}, {1_000_002, 1}, {1_000_004, 2}} {
		job.notePlacement(t.Context(), answer.heartbeat, &pecanv1.Placement{Remote: answer.remote, Why: "because"})
	}
	if got := said.about("placement"); len(got) != 2 {
		t.Errorf("%d lines:\n%s", len(got), strings.Join(got, ""))
	}
}
