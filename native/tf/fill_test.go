package tf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

var patient = Pace{MaxElements: 1 << 20, Linger: time.Minute, Hurry: time.Minute}

func TestFillBlockStoresElementsByComponent(t *testing.T) {
	it := newIterator(t, newContext(t), "pairs", Int64, Float)
	block := newBlock(t, it, 64)
	next := int64(1)
	for {
		rows, mismatch, err := it.FillBlock(block, patient)
		for i := range rows {
			first := int64(binary.LittleEndian.Uint64(block.Rows(0, i, i+1)))
			if first != next || len(block.Rows(1, i, i+1)) != 8 {
				t.Fatalf("row %d is %d, expected %d", i, first, next)
			}
			next++
		}
		if mismatch != nil {
			t.Fatal("an element of the same shape was returned as a mismatch")
		}
		if left := it.Progress(); left != 0 {
			t.Fatalf("%d rows of the next fill before it began", left)
		}
		if err == io.EOF {
			break
		}
		if err != nil || rows != 64 {
			t.Fatal(rows, err)
		}
	}
	if next != 1000 {
		t.Fatalf("ended at %d", next)
	}
}

func TestFillBlockReturnsElementsOfAnotherShape(t *testing.T) {
	it := newIterator(t, newContext(t), "mixed", UInt8)
	block := newBlock(t, it, 64)
	rows, mismatch, err := it.FillBlock(block, patient)
	if rows != 8 || len(mismatch) != 1 || len(mismatch[0].Data()) != 100_000 || err != nil {
		t.Fatal(rows, mismatch, err)
	}
	ReleaseAll(mismatch)
}

func TestFillPackStopsAtTheElementThatDoesNotFit(t *testing.T) {
	it := newIterator(t, newContext(t), "strings", String)
	pack := NewPack(4096, 4096)
	defer pack.Free()
	seen := 0
	for {
		pack.Reset()
		rows, mismatch, err := it.FillPack(pack, []Shape{{}}, 1000, patient)
		seen += rows
		if len(pack.Table()) != 16*rows || len(pack.Payload()) > 4096 {
			t.Fatalf("%d rows, table of %d, payload of %d bytes", rows, len(pack.Table()), len(pack.Payload()))
		}
		if mismatch != nil {
			seen++
			if size := mismatch[0].WireSize(); size <= 1000 && pack.Put(mismatch) {
				t.Fatalf("an element of %d bytes would have fitted", size)
			}
			ReleaseAll(mismatch)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen != 500 {
		t.Fatalf("%d elements", seen)
	}
}

func TestFillReturnsAfterItsLingerTime(t *testing.T) {
	it := newIterator(t, newContext(t), "endless", Int64)
	block := newBlock(t, it, 1<<20)
	if rows, _, err := it.FillBlock(block, Pace{MaxElements: 1 << 20, Linger: time.Millisecond, Hurry: time.Hour}); err != nil || rows == 0 || rows == 1<<20 {
		t.Fatal(rows, err)
	}
	it.Hurry(true)
	if rows, _, err := it.FillBlock(block, Pace{MaxElements: 1 << 20, Linger: time.Hour, Hurry: 0}); err != nil || rows != 1 {
		t.Fatal(rows, err)
	}
}

func TestStringsOfEveryLengthAreReturned(t *testing.T) {
	newContext(t)
	var values []string
	for _, n := range []int{0, 1, 21, 22, 23, 24, 4095, 100_000, 3 << 20} {
		values = append(values, strings.Repeat("s", n))
	}
	var lengths, all []byte
	for _, v := range values {
		lengths = binary.LittleEndian.AppendUint64(lengths, uint64(len(v)))
		all = append(all, v...)
	}
	payload := append(lengths, all...)
	tensor, err := NewStrings([]int64{int64(len(values))}, payload)
	if err != nil {
		t.Fatal(err)
	}
	defer tensor.Release()
	packed := make([]byte, tensor.WireSize())
	tensor.PackStrings(packed)
	if !bytes.Equal(packed, payload) || !bytes.Equal(bytes.Join(tensor.StringSegments(), nil), payload) {
		t.Fatal("the strings changed")
	}
	for name, bad := range map[string][]byte{
		"too short for its lengths": payload[:len(lengths)-1], "too short for its strings": payload[:len(payload)-1],
		"lengths that overflow": append(bytes.Repeat([]byte{0xff}, len(lengths)), all...),
	} {
		if tensor, err := NewStrings([]int64{int64(len(values))}, bad); err == nil {
			tensor.Release()
			t.Errorf("accepted a payload %s", name)
		}
	}
}

func TestStringsDoNotLeak(t *testing.T) {
	payload := make([]byte, 8+1<<20)
	binary.LittleEndian.PutUint64(payload, 1<<20)
	grown := func() int64 {
		before := resident(t)
		for range 200 {
			tensor, err := NewStrings(nil, payload)
			if err != nil {
				t.Fatal(err)
			}
			tensor.Release()
		}
		return resident(t) - before
	}
	grown()
	if bytes := grown(); bytes > 50<<20 {
		t.Fatalf("200 strings of 1 MiB left %d bytes behind", bytes)
	}
}

func resident(t *testing.T) int64 {
	t.Helper()
	runtime.GC()
	var size, pages int64
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(raw), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// batches is a source of the int64 batches [0 1 2] [3 4 5] ...
type batches struct{ left, next int64 }

func (b *batches) Pull() ([]*Tensor, error) {
	if b.left == 0 {
		return nil, io.EOF
	}
	b.left--
	var data []byte
	for range 3 {
		data = binary.LittleEndian.AppendUint64(data, uint64(b.next))
		b.next++
	}
	tensor, err := NewTensor(Int64, []int64{3}, data)
	return []*Tensor{tensor}, err
}

// broken is a source that fails.
type broken struct{ err error }

func (b broken) Pull() ([]*Tensor, error) { return nil, b.err }

// pullGraph returns the second of two graphs: a map whose input is a source of an unknown number of batches.
func pullGraph(t *testing.T, source int64) []byte {
	t.Helper()
	parsed, err := graph.Parse(graphFile(t, "closing"), graph.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	options := &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE}
	plan, err := split.MakePlan(parsed, options, split.Env{})
	if err != nil {
		t.Fatal(err)
	}
	graphs, err := rewrite.Instantiate(parsed, plan, rewrite.At{Source: source, Mode: options.Mode})
	if err != nil || len(graphs.B) == 0 {
		t.Fatal(plan.GetBatchStrategy(), err)
	}
	return graphs.B
}

func TestAGraphPullsFromASource(t *testing.T) {
	c := newContext(t)
	pulling := func(t *testing.T, s Source) *Iterator {
		handle := RegisterSource(s)
		t.Cleanup(func() { RemoveSource(handle) })
		it, err := c.NewIterator(pullGraph(t, handle), []DataType{Int64, Float})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(it.Close)
		return it
	}
	t.Run("until its end", func(t *testing.T) {
		it := pulling(t, &batches{left: 500})
		wantBatches(t, it, 0, 500)
		if _, err := it.Next(); err != io.EOF {
			t.Fatal(err)
		}
	})
	t.Run("and gets its errors with their code", func(t *testing.T) {
		it := pulling(t, broken{&Error{Code: 7, Message: "not for you"}})
		var own *Error
		if _, err := it.Next(); !errors.As(err, &own) || own.Code != 7 || !strings.Contains(own.Message, "not for you") {
			t.Fatal(err)
		}
	})
	t.Run("and an unknown source is an error", func(t *testing.T) {
		it, err := c.NewIterator(pullGraph(t, 1<<40), []DataType{Int64, Float})
		if err != nil {
			t.Fatal(err)
		}
		defer it.Close()
		if _, err := it.Next(); err == nil || !strings.Contains(err.Error(), "no source") {
			t.Fatal(err)
		}
	})
}

// The padding between the components of a pack is sent with them.
func TestPaddingOfAPackIsZero(t *testing.T) {
	pack := NewPack(4096, 4096)
	defer pack.Free()
	payload, _ := pack.Memory()
	for i := range payload {
		payload[i] = 0xAA
	}
	pack.Reset()
	for range 3 {
		one, err := NewTensor(UInt8, []int64{3}, []byte{1, 2, 3})
		if err != nil {
			t.Fatal(err)
		}
		if !pack.Put([]*Tensor{one}) {
			t.Fatal("it does not fit")
		}
		one.Release()
	}
	for i, b := range pack.Payload() {
		if i%64 >= 3 && b != 0 {
			t.Fatalf("byte %d of %d is %#x", i, len(pack.Payload()), b)
		}
	}
}

// wantBatches reads the batches from one number up to another, and expects each to begin with three times its number.
func wantBatches(t *testing.T, it *Iterator, from, to int64) {
	t.Helper()
	for i := from; i < to; i++ {
		element, err := it.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got := *(*int64)(ptr(element[0].Data())); got != 3*i {
			t.Fatalf("batch %d begins with %d", i, got)
		}
		ReleaseAll(element)
	}
}
