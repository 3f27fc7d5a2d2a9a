package tf

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/tensorflow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func graphFile(t testing.TB, name string) []byte {
	t.Helper()
	graph, err := os.ReadFile(filepath.Join("testdata", name+".graph"))
	if err != nil {
		t.Fatal(err)
	}
	return graph
}

func newContext(t testing.TB) *Context {
	t.Helper()
	c, err := NewContext(ContextOptions{InterOpThreads: 2, IntraOpThreads: 1})
	if err != nil {
		t.Fatal(err)
	}
	before := LiveTensors()
	t.Cleanup(func() {
		c.Close()
		if now := LiveTensors(); now != before {
			t.Errorf("%d tensors leaked", now-before)
		}
	})
	return c
}

func newIterator(t testing.TB, c *Context, name string, types ...DataType) *Iterator {
	t.Helper()
	it, err := c.NewIterator(graphFile(t, name), types)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(it.Close)
	return it
}

// newBlock returns a block for so many elements like the next one of an iterator.
func newBlock(t testing.TB, it *Iterator, rows int) *Block {
	t.Helper()
	like, err := it.Next()
	if err != nil {
		t.Fatal(err)
	}
	defer ReleaseAll(like)
	block, err := NewBlock(like, rows)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(block.Free)
	return block
}

func int64Of(t testing.TB, tensor *Tensor) int64 {
	t.Helper()
	if tensor.DType() != Int64 || len(tensor.Data()) != 8 {
		t.Fatalf("dtype %d, %d bytes", tensor.DType(), len(tensor.Data()))
	}
	return *(*int64)(ptr(tensor.Data()))
}

func TestAnIteratorReturnsElementsErrorsAndTheEnd(t *testing.T) {
	c := newContext(t)
	t.Run("elements come in order and the end is io.EOF again and again", func(t *testing.T) {
		it := newIterator(t, c, "thousand", Int64)
		for i := range int64(1000) {
			element, err := it.Next()
			if err != nil {
				t.Fatal(err)
			}
			if got := int64Of(t, element[0]); got != i {
				t.Fatalf("element %d is %d", i, got)
			}
			ReleaseAll(element)
		}
		for range 2 {
			if _, err := it.Next(); err != io.EOF {
				t.Fatalf("at the end: %v", err)
			}
		}
	})
	t.Run("an element that fails keeps TensorFlow's code and the next one comes", func(t *testing.T) {
		it := newIterator(t, c, "failing", Int64)
		for i := range int64(6) {
			element, err := it.Next()
			if i == 3 {
				var own *Error
				if !errors.As(err, &own) || own.Code != CodeInvalidArgument {
					t.Fatalf("element 3: %v", err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := int64Of(t, element[0]); got != i*10 {
				t.Fatalf("element %d is %d", i, got)
			}
			ReleaseAll(element)
		}
	})
	t.Run("skip drops elements without giving them out", func(t *testing.T) {
		it := newIterator(t, c, "thousand", Int64)
		if n, err := it.Skip(990); n != 990 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := it.Skip(100); n != 10 || err != io.EOF {
			t.Fatal(n, err)
		}
	})
	t.Run("dtypes that the dataset does not have are refused", func(t *testing.T) {
		if _, err := c.NewIterator(graphFile(t, "thousand"), []DataType{Float}); err == nil {
			t.Fatal("accepted")
		}
	})
	t.Run("bytes that are no graph are refused", func(t *testing.T) {
		if _, err := c.NewIterator([]byte("no graph"), []DataType{Int64}); err == nil {
			t.Fatal("accepted")
		}
	})
}

func TestCancelEndsAWaitingCall(t *testing.T) {
	c := newContext(t)
	for _, name := range []string{"starved", "spinning"} {
		t.Run(name, func(t *testing.T) {
			it := newIterator(t, c, name, Int64)
			done := make(chan error, 1)
			go func() {
				for {
					element, err := it.Next()
					if err != nil {
						done <- err
						return
					}
					ReleaseAll(element)
				}
			}()
			time.Sleep(30 * time.Millisecond)
			start := time.Now()
			it.Cancel()
			select {
			case err := <-done:
				if err != ErrCancelled {
					t.Fatal(err)
				}
				t.Log("cancel took", time.Since(start))
			case <-time.After(10 * time.Second):
				t.Fatal("the call did not end")
			}
			if _, err := it.Next(); err != ErrCancelled {
				t.Fatalf("after a cancel: %v", err)
			}
		})
	}
}

func TestTheModelReportsNodeTimes(t *testing.T) {
	it := newIterator(t, newContext(t), "mapped", Int64)
	for range 10 {
		element, err := it.Next()
		if err != nil {
			t.Fatal(err)
		}
		ReleaseAll(element)
	}
	raw, err := it.Model()
	if err != nil {
		t.Fatal(err)
	}
	model := new(tensorflow.ModelProto)
	if err := proto.Unmarshal(raw, model); err != nil {
		t.Fatal(err)
	}
	for id, node := range model.GetNodes() {
		t.Logf("%d: %s elements=%d ns=%d in=%d out=%d inputs=%v", id, node.GetName(), node.GetNumElements(), node.GetProcessingTime(), node.GetBytesConsumed(), node.GetBytesProduced(), node.GetInputs())
	}
	if len(model.GetNodes()) < 3 {
		t.Fatalf("%d nodes", len(model.GetNodes()))
	}
}

func TestTheRegistryHasTheOpsOfTensorFlowAndPecan(t *testing.T) {
	newContext(t)
	ops, err := Ops()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, op := range ops.GetOp() {
		found[op.GetName()] = true
	}
	if !found["PecanPull"] || !found["ParallelMapDatasetV2"] {
		t.Fatalf("%d ops, not all that were expected", len(found))
	}
	if producer, err := GraphProducer(); err != nil || producer < 1000 {
		t.Fatal(producer, err)
	}
}

func BenchmarkNext(b *testing.B) {
	it := newIterator(b, newContext(b), "endless", Int64)
	b.ReportAllocs()
	for b.Loop() {
		element, err := it.Next()
		if err != nil {
			b.Fatal(err)
		}
		ReleaseAll(element)
	}
}

func BenchmarkFillBlock(b *testing.B) {
	it := newIterator(b, newContext(b), "endless", Int64)
	block := newBlock(b, it, 4096)
	rows := 0
	b.ResetTimer()
	for rows < b.N {
		n, _, err := it.FillBlock(block, Pace{MaxElements: min(4096, b.N-rows), Linger: time.Second, Hurry: time.Second})
		if err != nil {
			b.Fatal(err)
		}
		rows += n
	}
}

func BenchmarkLarge(b *testing.B) {
	it := newIterator(b, newContext(b), "large", UInt8)
	b.SetBytes(9_600_000)
	for b.Loop() {
		element, err := it.Next()
		if err != nil {
			b.Fatal(err)
		}
		ReleaseAll(element)
	}
}
