package worker

import (
	"testing"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestAStreamArrivesWholeAndInOrder(t *testing.T) {
	cases := map[string]func(testing.TB, *Worker) *reader{"over TCP": dialTCP, "with shared memory": dialShared}
	for name, dial := range cases {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, nil)
			o := startCommand("thousand")
			w.streams.Start(o)
			r := dial(t, w)
			r.open(1, opening(o))
			elements, _, end := r.stream(0)
			if len(elements) != 1000 || end.Index != 1000 {
				t.Fatalf("%d elements, the end says %d", len(elements), end.Index)
			}
			for i, element := range elements {
				if got := element[0].int64(t); got != int64(i) || len(element[0].dims) != 0 {
					t.Fatalf("element %d is %d with dims %v", i, got, element[0].dims)
				}
			}
		})
	}
}

func TestEveryDtypeAndShapeArrives(t *testing.T) {
	_, r := startOpen(t, startCommand("dtypes"))
	elements, _, _ := r.stream(0)
	if len(elements) != 3 {
		t.Fatalf("%d elements", len(elements))
	}
	for _, element := range elements {
		if len(element) != 23 {
			t.Fatalf("%d components", len(element))
		}
		for i, v := range element[:17] {
			if uint64(len(v.bytes)) != 6*frame.Width(v.dtype) || len(v.dims) != 2 || v.dims[0] != 2 || v.dims[1] != 3 {
				t.Errorf("component %d: dtype %d, %d bytes, dims %v", i, v.dtype, len(v.bytes), v.dims)
			}
		}
		if element[17].int64(t) != 7 || element[18].dims[0] != 0 || len(element[19].dims) != 3 || len(element[19].bytes) != 0 {
			t.Errorf("scalar or empty shapes: %v %v %v", element[17], element[18], element[19])
		}
		if s := element[20].strings(); len(s) != 1 || s[0] != "" {
			t.Errorf("empty string: %q", s)
		}
		s := element[21].strings()
		if len(s) != 5 || s[1] != "a" || len(s[2]) != 22 || len(s[3]) != 23 || len(s[4]) != 5000 {
			t.Errorf("strings: %d", len(s))
		}
		if len(element[22].strings()) != 0 {
			t.Errorf("no strings: %v", element[22])
		}
	}
}

func TestElementsOfManySizesShareFrames(t *testing.T) {
	for _, name := range []string{"ragged", "strings", "mixed", "pairs"} {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, nil)
			o := startCommand(name)
			w.streams.Start(o)
			r := dialShared(t, w)
			r.open(1, opening(o))
			elements, _, _ := r.stream(0)
			for i, element := range elements {
				checkNamed(t, name, i, element)
			}
			if want := map[string]int{"ragged": 200, "strings": 500, "mixed": 40, "pairs": 1000}[name]; len(elements) != want {
				t.Fatalf("%d elements", len(elements))
			}
		})
	}
}

func checkNamed(t *testing.T, name string, i int, element []value) {
	t.Helper()
	switch name {
	case "ragged":
		if element[0].dims[0] != uint64(i) || element[1].int64(t) != int64(i) {
			t.Fatalf("element %d: %v", i, element)
		}
	case "strings":
		if s := element[0].strings()[0]; len(s) != i*len(digits(i)) {
			t.Fatalf("element %d has %d characters", i, len(s))
		}
	case "mixed":
		want := 10
		if i%10 == 9 {
			want = 100_000
		}
		if len(element[0].bytes) != want || element[0].bytes[want-1] != byte(i) {
			t.Fatalf("element %d: %d bytes", i, len(element[0].bytes))
		}
	case "pairs":
		if element[0].int64(t) != int64(i) || len(element[1].bytes) != 8 {
			t.Fatalf("element %d: %v", i, element)
		}
	}
}

func digits(i int) string {
	if i < 10 {
		return string(rune('0' + i))
	}
	return digits(i/10) + digits(i%10)
}

func TestAnElementThatFailsOccupiesItsIndex(t *testing.T) {
	_, r := startOpen(t, startCommand("failing"))
	elements, failures, end := r.stream(0)
	if end.Index != 6 || len(failures) != 1 || failures[3] == nil {
		t.Fatalf("end at %d, failures %v", end.Index, failures)
	}
	if f := failures[3]; f.Reason != reason.ElementFailed || f.Code() != 3 {
		t.Errorf("reason %s, code %v: %s", f.Reason, f.Code(), f.Message)
	}
	if elements[4][0].int64(t) != 40 {
		t.Errorf("the element after it: %v", elements[4])
	}
}

func TestAMissingFileNamesWorkerAndPath(t *testing.T) {
	w, r := startOpen(t, startCommand("missing"))
	for {
		g, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		if g.failure == nil || g.failure.Reason != reason.FileNotVisible {
			t.Fatalf("got %v", g)
		}
		if g.header.Flags&frame.Element == 0 {
			t.Log(g.failure.Message)
			break
		}
	}
	if w.streams.Load().FailedStreams != 1 {
		t.Fatal("the stream goes on forever")
	}
	// The end of the stream may have reported them.
	w.streams.Totals.Resend()
	if metrics := w.streams.Totals.Unreported("job"); metrics == nil || metrics.Failed > 0 {
		t.Errorf("the missing file counts against the order of the steps: %v", metrics)
	}
}

func TestElementsAreCheckedAgainstSpecAndLimit(t *testing.T) {
	t.Run("an element of another shape than registered is named", func(t *testing.T) {
		o := startCommand("mixed")
		o.Components = []*pecanv1.ComponentSpec{{Dtype: 4, Dims: []int64{10}}}
		_, r := startOpen(t, o)
		elements, failures, _ := r.stream(0)
		if len(elements) != 40 || len(failures) != 4 || failures[9].Reason != reason.ElementSpec {
			t.Fatalf("%d elements, failures %v", len(elements), failures)
		}
		t.Log(failures[9])
	})
	t.Run("an element above the limit is named and the stream goes on", func(t *testing.T) {
		o := startCommand("mixed")
		o.Options.MaxElementBytes = 50_000
		_, r := startOpen(t, o)
		_, failures, end := r.stream(0)
		if end.Index != 40 || len(failures) != 4 || failures[19].Reason != reason.ElementTooLarge {
			t.Fatalf("end %d, failures %v", end.Index, failures)
		}
		t.Log(failures[19])
	})
}

func TestPayloadsCanBeCheckedAndCompressed(t *testing.T) {
	w := startWorker(t, nil)
	o := startCommand("strings")
	w.streams.Start(o)
	r := dialTCP(t, w)
	request := opening(o)
	request.PayloadChecksum, request.Compression = true, pecanv1.Compression_COMPRESSION_SNAPPY
	r.open(1, request)
	compressed := false
	n := 0
	for {
		g, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		if g.header.Type == frame.End {
			break
		}
		if g.header.Flags&frame.Checksum == 0 {
			t.Fatal("no checksum")
		}
		compressed = compressed || g.header.Flags&frame.Snappy != 0
		for _, element := range g.elements {
			checkNamed(t, "strings", n, element)
			n++
		}
	}
	if !compressed || n != 500 {
		t.Fatal(compressed, n)
	}
}

func TestLongStringsArriveWithoutBeingCopiedTogether(t *testing.T) {
	for name, dial := range map[string]func(testing.TB, *Worker) *reader{"over TCP": dialTCP, "with shared memory": dialShared} {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, func(c *Config) { c.WindowBytes = 512 << 20 })
			o := startCommand("long")
			w.streams.Start(o)
			r := dial(t, w)
			r.open(1, opening(o))
			elements, _, _ := r.stream(0)
			if len(elements) != 2 {
				t.Fatal(len(elements))
			}
			for i, element := range elements {
				s := element[0].strings()[0]
				if len(s) != 64<<20 || s[0] != byte('0'+i) || s[len(s)-1] != byte('0'+i) {
					t.Fatalf("element %d has %d characters", i, len(s))
				}
			}
		})
	}
}
