package sim

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

func unmarshal(data []byte, m proto.Message) bool { return proto.Unmarshal(data, m) == nil }

// N3: a trainer does not reach the dispatcher for ten minutes. Elements of its workers keep coming.
func TestN3ATrainerWithoutADispatcher(t *testing.T) {
	scenario{options: options{workers: 2, clientTimeout: 15 * time.Minute}, data: uneven, ahead: 1, pace: 8 * time.Second, during: func(r *run) {
		r.tr.after(5)
		r.net.Split(trainerIP(0), dispatcherIP, true)
		at := r.tr.taken.Load()
		time.Sleep(10 * time.Minute)
		if came := r.tr.taken.Load() - at; came < 60 {
			r.t.Errorf("%d elements came in ten minutes without a dispatcher", came)
		}
		r.need(simnet.Loss)
		r.net.Split(trainerIP(0), dispatcherIP, false)
	}}.check(t)
}

// N4: one direction of one link is lost, at the start and later.
func TestN4OneDirectionIsLost(t *testing.T) {
	links := map[string][2]string{
		"trainer to dispatcher": {trainerIP(0), dispatcherIP}, "dispatcher to trainer": {dispatcherIP, trainerIP(0)},
		"worker to dispatcher": {workerIP(0), dispatcherIP}, "dispatcher to worker": {dispatcherIP, workerIP(0)},
		"trainer to worker": {trainerIP(0), workerIP(0)}, "worker to trainer": {workerIP(0), trainerIP(0)},
	}
	for name, link := range links {
		t.Run(name, func(t *testing.T) {
			scenario{options: options{workers: 2}, data: uneven, ahead: 1, pace: 20 * time.Millisecond, before: func(r *run) {
				r.net.Lose(link[0], link[1], true)
			}, during: func(r *run) {
				time.Sleep(12 * time.Second)
				r.net.Lose(link[0], link[1], false)
				r.tr.after(r.elements() - 20)
				r.net.Lose(link[0], link[1], true)
				time.Sleep(12 * time.Second)
				r.net.Lose(link[0], link[1], false)
				r.need(simnet.Loss)
			}}.check(t)
		})
	}
}

// N7: every call of the trainer arrives two or three times, the last time up to 30 s late. Every intent has one
// effect (see inspect).
func TestN7EveryCallIsRepeated(t *testing.T) {
	scenario{options: options{workers: 2, repeated: true}, before: func(r *run) { r.proxy.always.Store(true) }, during: func(r *run) {
		r.tr.after(2*r.elements() - 1)
		// Late copies come while the job exists and after its end.
		time.Sleep(40 * time.Second)
		if n := r.proxy.repeats.Load(); n < 10 {
			r.t.Errorf("%d calls were repeated", n)
		}
	}}.check(t)
}

// N8: one worker's frames come seconds after later ones of the others.
func TestN8WorkersOfDifferentDelay(t *testing.T) {
	scenario{options: options{workers: 3, slots: 2}, data: uneven, ahead: 1, before: func(r *run) {
		r.net.Slow(workerIP(0), trainerIP(0), 700*time.Millisecond)
		r.net.Slow(workerIP(1), trainerIP(0), 50*time.Millisecond)
	}, during: func(r *run) {
		r.tr.after(r.elements())
		r.need(simnet.Delay)
	}}.check(t)
}

// N9: the connection is reset at each of 64 points of large elements.
func TestN9AResetAtAnyPointOfALargeElement(t *testing.T) {
	const points = 64
	scenario{options: options{workers: 1}, data: large, epochs: 8, ahead: 1, pace: 10 * time.Millisecond, during: func(r *run) {
		for n := range points {
			r.net.CutAfter(workerIP(0), trainerIP(0), int64(n)<<20/points)
			r.eventually(fmt.Sprint(n+1, " connections are cut"), time.Minute, func() bool { return r.net.Hits()[simnet.Cut] > n })
		}
	}}.check(t)
}

// N7: a worker's frames come twice. The second copy is dropped and counted.
func TestN7DuplicateElementsAreDropped(t *testing.T) {
	scenario{options: options{workers: 2}, data: texts, pace: time.Millisecond, ahead: 1 << 20, before: func(r *run) { r.ledger.twice.Store(20) }, after: needDrops}.check(t)
}

// needDrops fails the test unless the trainer counted dropped elements.
func needDrops(r *run) {
	if r.ledger.dropped() == 0 {
		r.t.Error("nothing was dropped")
	}
}

// TCP let a wrong bit through. The connection is closed, and its elements come again.
func TestAFlippedBitIsNotDelivered(t *testing.T) {
	scenario{options: options{workers: 1}, data: uneven, ahead: 1, pace: 5 * time.Millisecond, during: func(r *run) {
		for n := range 30 {
			r.net.FlipAfter(workerIP(0), trainerIP(0), int64(n*613%20_000))
			r.eventually(fmt.Sprint(n+1, " bits are flipped"), time.Minute, func() bool { return r.net.Hits()[simnet.Flip] > n })
		}
	}}.check(t)
}

// G2: the dispatcher is paused for longer than a worker may be silent. Afterwards it does not count the
// workers as dead. A pause above 15 s would trigger gRPC's own timers, which the test cannot hold. Tests with real
// processes pause longer.
func TestG2APausedDispatcher(t *testing.T) {
	paused := options{}.dispatcher().Core.DeadAfter + 3*time.Second
	scenario{options: options{workers: 2}, data: uneven, ahead: 1, pace: 200 * time.Millisecond, epochs: 1, during: func(r *run) {
		r.tr.after(10)
		r.pauseDispatcher(true)
		time.Sleep(paused)
		r.pauseDispatcher(false)
		time.Sleep(10 * time.Second)
		r.need(simnet.Pause)
		if n := r.ledger.moved(r.tr); n > 0 {
			r.t.Errorf("%d streams moved because the dispatcher was paused", n)
		}
	}}.check(t)
}

// wallClock has the methods that make a time.Time without a monotonic reading, or read its wall clock. The rest of
// package time is monotonic.
var wallClock = map[string]bool{
	"Unix": true, "UnixMilli": true, "UnixMicro": true, "UnixNano": true, "Round": true, "Truncate": true, "UTC": true, "Local": true,
	"In": true, "Format": true, "AppendFormat": true, "Date": true, "Year": true, "YearDay": true, "Weekday": true, "Parse": true, "ParseInLocation": true,
	"MarshalText": true, "MarshalJSON": true, "MarshalBinary": true,
}

// C1: no decision reads the wall clock, so its jumps change nothing. The code calls none of these methods, except
// the harmless calls below.
func TestC1NothingReadsTheWallClock(t *testing.T) {
	harmless := map[string]string{
		"native/client/transport/dial.go: Unix":                 "a deadline in the past, whatever time it is",
		"native/op/kernels.go: Round":                           "of a duration, for people",
		"service/cmd/pecanctl/profiles.go: Format":              "of the date of an epoch, for people",
		"service/cmd/pecanctl/profiles.go: Parse":               "of files",
		"service/cmd/pecanctl/profiles.go: UTC":                 "of that date",
		"service/cmd/pecanctl/profiles.go: Unix":                "of that date",
		"service/cmd/pecanctl/show.go: Round":                   "of a duration, for people",
		"service/dispatcher/commit.go: Round":                   "of a duration, for the log",
		"service/dispatcher/core/cache_decision.go: Local":      "a number of workers on the trainers' hosts",
		"service/dispatcher/core/placement/status.go: Local":    "a number of workers on the trainers' hosts",
		"service/dispatcher/core/placement/placement.go: Local": "a number of workers on the trainers' hosts",
		"service/dispatcher/core/placement/window.go: Local":    "a number of workers on the trainers' hosts",
		"service/dispatcher/dispatcher.go: Unix":                "the dates of epochs, by which only old learned graphs are forgotten",
		"service/dispatcher/placing/placer.go: Local":           "a number of workers on the trainers' hosts",
		"service/dispatcher/core/workers.go: Round":             "of a duration, for people",
		"service/graph/extents/keep.go: UnixNano":               "of a file's time of change, which only has to be equal",
		"service/internal/cli/cli.go: Parse":                    "of flags",
		"service/internal/clock/fake.go: Unix":                  "the fake clock",
		"service/provision/kubernetes.go: Format":               "of the mark of a pod that leaves, for a dispatcher that starts again",
		"service/provision/kubernetes.go: Parse":                "of that mark",
		"service/provision/kubernetes.go: UTC":                  "of that mark",
		"service/provision/local.go: Round":                     "of a duration, for people",
		"service/provision/plan.go: Round":                      "of a duration, for people",
		"service/worker/dataset/files.go: UnixNano":             "of a file's time of change; a jump can only make a file count as young, or not",
		"service/worker/drain.go: Round":                        "of a duration, for the log",
		"service/worker/objects/gcs.go: UnixNano":               "of an object's time of change, which only has to be equal",
		"service/worker/objects/token.go: Unix":                 "of a request for a token, by which Google's servers limit it",
		"service/worker/session.go: Round":                      "of a duration, for the log",
	}
	seen := map[string]bool{}
	for _, directory := range []string{"native", "service", "proto/frame", "policies"} {
		err := filepath.WalkDir(filepath.Join("..", "..", directory), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			usesTime := false
			for _, imported := range file.Imports {
				usesTime = usesTime || imported.Path.Value == `"time"`
			}
			if !usesTime {
				return nil
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && wallClock[s.Sel.Name] {
					call := fmt.Sprintf("%s: %s", strings.TrimPrefix(filepath.ToSlash(path), "../../"), s.Sel.Name)
					seen[call] = true
					if base, ok := s.X.(*ast.Ident); harmless[call] == "" && !(ok && (base.Name == "proto" || base.Name == "math")) {
						t.Errorf("%s reads the wall clock; give the reason in this test, or use a monotonic clock", call)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for call := range harmless {
		if !seen[call] {
			t.Errorf("%s is not there any more", call)
		}
	}
}
