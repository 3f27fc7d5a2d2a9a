package tf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/tensorflow"
)

// pooledGraph returns the graph of testdata whose streams are range(0, count, step), times 10 and shuffled. A
// stream fails at the element bad, and cannot be built with step 0. The arguments come from PecanPull.
func pooledGraph(t testing.TB, source int64) []byte {
	t.Helper()
	var def tensorflow.GraphDef
	if err := proto.Unmarshal(graphFile(t, "pooled"), &def); err != nil {
		t.Fatal(err)
	}
	for _, n := range def.GetNode() {
		if n.GetOp() != "MapDataset" {
			continue
		}
		for _, f := range def.GetLibrary().GetFunction() {
			if f.GetSignature().GetName() == n.GetAttr()["f"].GetFunc().GetName() {
				pull := &tensorflow.NodeDef{Name: "pull", Op: "PecanPull", Attr: map[string]*tensorflow.AttrValue{
					"source":       {Value: &tensorflow.AttrValue_I{I: source}},
					"output_types": n.GetAttr()["output_types"], "output_shapes": n.GetAttr()["output_shapes"]}}
				f.NodeDef, f.Signature.IsStateful = []*tensorflow.NodeDef{pull}, true
				for i, out := range f.GetSignature().GetOutputArg() {
					f.Ret[out.GetName()] = fmt.Sprintf("pull:components:%d", i)
				}
			}
		}
	}
	raw, err := proto.Marshal(&def)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func newPooled(t testing.TB, c *Context) *Iterator {
	t.Helper()
	it, err := c.NewPooled(func(source int64) ([]byte, error) { return pooledGraph(t, source), nil }, []DataType{Int64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(it.Close)
	return it
}

func begin(t testing.TB, it *Iterator, values ...int64) {
	t.Helper()
	arguments := make([]*Tensor, len(values))
	for i, v := range values {
		tensor, err := NewTensor(Int64, nil, binary.LittleEndian.AppendUint64(nil, uint64(v)))
		if err != nil {
			t.Fatal(err)
		}
		arguments[i] = tensor
	}
	if err := it.Begin(arguments); err != nil {
		t.Fatal(err)
	}
}

func TestAPooledIteratorRunsOneStreamAfterAnother(t *testing.T) {
	it := newPooled(t, newContext(t))
	if _, err := it.Next(); err != io.EOF || !it.Idle() {
		t.Fatalf("without a stream: %v", err)
	}
	var first []string
	for i, count := range []int64{20, 0, 3, 20} {
		begin(t, it, count, 1, -1)
		if it.Idle() {
			t.Error("an iterator with a stream is idle")
		}
		got := drain(t, it, 100)
		if len(got) != int(count)+1 || !it.Idle() {
			t.Errorf("stream %d of %d elements gives %v", i, count, got)
		}
		if i == 0 {
			first = got
		}
		if i == 3 && fmt.Sprint(got) != fmt.Sprint(first) {
			t.Errorf("the same arguments give %v, then %v", first, got)
		}
		for range 2 {
			if _, err := it.Next(); err != io.EOF {
				t.Errorf("after the end: %v", err)
			}
		}
	}
	begin(t, it, 10, 1, -1)
	if n, err := it.Skip(20); n != 10 || err != io.EOF {
		t.Errorf("skipped %d: %v", n, err)
	}
}

func TestAPooledStreamIsNotSavedBeforeItsFirstElement(t *testing.T) {
	it := newPooled(t, newContext(t))
	begin(t, it, 20, 1, -1)
	if state, err := it.Save(); err == nil {
		state.Free()
		t.Error("the state has no stream")
	}
	if got := drain(t, it, 100); len(got) != 21 {
		t.Errorf("after that the stream gives %v", got)
	}
}

func TestAFailedElementDoesNotEndAPooledStream(t *testing.T) {
	it := newPooled(t, newContext(t))
	begin(t, it, 20, 1, 5)
	good, failed := 0, 0
	for {
		element, err := it.Next()
		ReleaseAll(element)
		own := (*Error)(nil)
		if err == io.EOF {
			break
		} else if errors.As(err, &own) {
			failed++
		} else if err == nil {
			good++
		} else {
			t.Fatal(err)
		}
	}
	if good != 19 || failed != 1 {
		t.Errorf("%d elements and %d failures", good, failed)
	}
	begin(t, it, 4, 1, -1)
	if got := drain(t, it, 100); len(got) != 5 {
		t.Errorf("the next stream gives %v", got)
	}
}

func TestAPooledStreamThatCannotBeBuiltFailsAndEnds(t *testing.T) {
	it := newPooled(t, newContext(t))
	for range 3 {
		begin(t, it, 20, 0, -1)
		if _, err := it.Next(); !errors.As(err, new(*Error)) {
			t.Fatalf("no error: %v", err)
		}
		if _, err := it.Next(); err != io.EOF {
			t.Fatalf("the stream goes on: %v", err)
		}
		begin(t, it, 2, 1, -1)
		if got := drain(t, it, 100); len(got) != 3 {
			t.Fatalf("the next stream gives %v", got)
		}
	}
}

func TestACancelledPooledIteratorBeginsNothing(t *testing.T) {
	it := newPooled(t, newContext(t))
	begin(t, it, 20, 1, -1)
	element, err := it.Next()
	if err != nil {
		t.Fatal(err)
	}
	ReleaseAll(element)
	if err := it.Begin(nil); err == nil {
		t.Error("two streams at once")
	}
	it.Cancel()
	if _, err := it.Next(); err != ErrCancelled {
		t.Errorf("after a cancel: %v", err)
	}
	if it.Idle() || it.Begin(nil) == nil {
		t.Error("a cancelled iterator begins a stream")
	}
	other := newPooled(t, newContext(t))
	begin(t, other, 20, 1, -1)
	other.Close()
}

func TestAPooledIteratorIsRestoredAndRunsFurtherStreams(t *testing.T) {
	c := newContext(t)
	whole := newPooled(t, c)
	begin(t, whole, 24, 1, -1)
	want := drain(t, whole, 100)
	it := newPooled(t, c)
	begin(t, it, 3, 1, -1)
	drain(t, it, 100)
	begin(t, it, 24, 1, -1)
	for at := 1; at < len(want); at++ {
		if got := drain(t, it, 1); fmt.Sprint(got) != fmt.Sprint(want[at-1:at]) {
			t.Fatalf("the iterator gives %v at %d", got, at-1)
		}
		state := saved(t, it)
		again := newPooled(t, c)
		if err := again.Restore(state); err != nil {
			t.Fatal(err)
		}
		if got := drain(t, again, 100); fmt.Sprint(got) != fmt.Sprint(want[at:]) {
			t.Fatalf("restored at %d: got %v\nwant %v", at, got, want[at:])
		}
		begin(t, again, 24, 1, -1)
		if got := drain(t, again, 100); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("the stream after a restored one gives %v", got)
		}
		again.Close()
	}
}

func TestStreamsOfAPooledIteratorLeaveNothingBehind(t *testing.T) {
	it := newPooled(t, newContext(t))
	run := func(streams int) {
		for range streams {
			begin(t, it, 4, 1, -1)
			if n, err := it.Skip(100); n != 4 || err != io.EOF {
				t.Fatalf("%d elements: %v", n, err)
			}
		}
	}
	threads := func() int {
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	run(1000)
	memory, before := resident(t), threads()
	run(4000)
	if grown := resident(t) - memory; grown > freedBytes {
		t.Errorf("4000 streams left %d bytes", grown)
	}
	if after := threads(); after > before+4 {
		t.Errorf("%d threads became %d", before, after)
	}
}

func BenchmarkFurtherPooledStream(b *testing.B) {
	it := newPooled(b, newContext(b))
	for b.Loop() {
		begin(b, it, 4, 1, -1)
		if n, err := it.Skip(100); n != 4 || err != io.EOF {
			b.Fatalf("%d elements: %v", n, err)
		}
	}
}
