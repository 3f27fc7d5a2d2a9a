package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/learned"
	"github.com/pecan-ml/pecan/service/store"
)

// serveDispatcher runs a dispatcher without a work directory.
func serveDispatcher(t *testing.T) *options {
	t.Helper()
	cfg := dispatcher.DefaultConfig()
	d, err := dispatcher.New(cfg, dispatcher.Deps{
		Store: store.NewMemory(), Graphs: dispatcher.NewGraphs(cfg), Clock: clock.System(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &options{dispatcher: listener.Addr().String(), timeout: 20 * time.Second}
}

func learnedOf(graph string) *pecanv1.Learned {
	return &pecanv1.Learned{
		Profiles: []*pecanv1.StoredProfile{{
			Fingerprint: graph, Nodes: []*pecanv1.NodeMetrics{{Node: "a", Elements: 700, SelfCpuS: 75}, {Node: "b", Elements: 700, SelfCpuS: 1}}, EpochsBegun: 7, EpochElements: 100,
		}},
		Orders: []*pecanv1.StoredOrder{{
			Fingerprint: graph, Policy: pecanv1.Order_ORDER_AUTO, Tolerance: pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT, PlanHash: "h", Order: []string{"b", "a"}, Trial: &pecanv1.OrderTrial{},
		}},
		Placements: []*pecanv1.PlacementKnown{{Fingerprint: graph, Remote: 3}},
		Cachings: []*pecanv1.StoredCaching{{
			Fingerprint: graph, KeptS: 1_700_000_000, Decision: &pecanv1.CacheDecision{Node: "b", Why: "it is the cheapest"}, Epochs: []*pecanv1.MeasuredEpoch{{Node: "b", Remote: 1, Seconds: 2}},
		}},
		Histories: []*pecanv1.StoredHistory{{Fingerprint: graph, Jobs: []*pecanv1.PastJob{{JobId: "j1", Epochs: 7, NextEpoch: 7, FirstS: 1_700_000_000, LastS: 1_700_000_060}}}},
	}
}

func TestProfilesGoFromOneDispatcherToAnother(t *testing.T) {
	first, second := serveDispatcher(t), serveDispatcher(t)
	call := func(o *options, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if err := run(t.Context(), o, append([]string{"profiles"}, args...), &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if out := call(first, "list"); !strings.Contains(out, "nothing was learned yet") {
		t.Errorf("a new dispatcher knows %s", out)
	}
	want, dir := &pecanv1.Learned{}, t.TempDir()
	for n := range 3 {
		proto.Merge(want, learnedOf(fmt.Sprintf("%064d", n)))
	}
	data, err := learned.Format(want)
	if err != nil {
		t.Fatal(err)
	}
	before, after := filepath.Join(dir, "before"), filepath.Join(dir, "after")
	if err := os.WriteFile(before, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"3 of 3 datasets", "0 of 3 datasets"} {
		if out := call(first, "merge", before); !strings.Contains(out, words) {
			t.Errorf("merge: %s, want %s", out, words)
		}
	}
	if out := call(first, "export", after); !strings.Contains(out, "3 datasets in "+after) {
		t.Errorf("export: %s", out)
	}
	if exported, err := os.ReadFile(after); err != nil || !bytes.Equal(exported, data) {
		t.Errorf("the exported file differs from the merged one (%v)", err)
	}
	call(second, "merge", after, before)
	table := call(second, "list")
	for _, words := range []string{"FINGERPRINT", "000000000000", "7", "100", "1m16s", "adopted (exact)", "CACHED", "  b  ", "2023-11-14 22:14"} {
		if !strings.Contains(table, words) {
			t.Errorf("lacks %q:\n%s", words, table)
		}
	}
	second.json = true
	listed := &pecanv1.Learned{}
	if out := call(second, "list"); !json.Valid([]byte(out)) || protojson.Unmarshal([]byte(out), listed) != nil || !proto.Equal(listed, want) {
		t.Errorf("as JSON: %s", out)
	}
}

func TestProfilesRefusesWhatItCannotUse(t *testing.T) {
	o, dir := serveDispatcher(t), t.TempDir()
	impossible := learnedOf("f1")
	impossible.Orders[0].Trial = nil
	files := map[string][]byte{"text": []byte("not a file of profiles"), "newer": nil, "impossible": nil, "good": nil}
	for name, l := range map[string]*pecanv1.Learned{"newer": learnedOf("f1"), "impossible": impossible, "good": learnedOf("f1")} {
		data, err := learned.Format(l)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = data
	}
	files["newer"][4]++
	path := map[string]string{}
	for name, data := range files {
		path[name] = filepath.Join(dir, name)
		if err := os.WriteFile(path[name], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, `profiles wants list, export FILE or merge FILE..., got ""`},
		{[]string{"show"}, `got "show"`},
		{[]string{"merge"}, `got "merge"`},
		{[]string{"export", path["good"]}, "file exists"},
		{[]string{"merge", path["good"], path["text"]}, "text: it is damaged"},
		{[]string{"merge", path["newer"]}, "newer: a later version of Pecan wrote it"},
		{[]string{"merge", path["impossible"]}, "no trial has confirmed the order"},
		{[]string{"merge", filepath.Join(dir, "absent")}, "no such file"},
	} {
		if err := run(t.Context(), o, append([]string{"profiles"}, c.args...), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}
	if out := (&bytes.Buffer{}); run(t.Context(), o, []string{"profiles", "list"}, out) != nil || !strings.Contains(out.String(), "nothing was learned") {
		t.Errorf("a refused merge changed something: %s", out)
	}
	limited := filepath.Join(dir, "limited")
	withFileLimit(t, 4, func() {
		if err := run(t.Context(), o, []string{"profiles", "export", limited}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "file too large") {
			t.Error(err)
		}
	})
	if _, err := os.Stat(limited); !os.IsNotExist(err) {
		t.Errorf("a part of a file is left: %v", err)
	}
	gone := &options{dispatcher: "127.0.0.1:1", timeout: time.Second}
	if err := run(t.Context(), gone, []string{"profiles", "list"}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "is it running") {
		t.Error(err)
	}
}

// withFileLimit runs do in a process whose files have this many bytes at most.
func withFileLimit(t *testing.T, bytes uint64, do func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	do()
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
}
