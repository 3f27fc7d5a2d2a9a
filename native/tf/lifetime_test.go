package tf

import (
	"errors"
	"testing"
)

func TestACallOnAClosedIteratorIsRefused(t *testing.T) {
	it := newIterator(t, newContext(t), "pairs", Int64, Float)
	block := newBlock(t, it, 8)
	pack := NewPack(4096, 4096)
	defer pack.Free()
	it.Close()
	it.Cancel()
	it.Close()
	for what, call := range map[string]func() error{
		"Next":      func() error { _, err := it.Next(); return err },
		"Skip":      func() error { _, err := it.Skip(1); return err },
		"FillBlock": func() error { _, _, err := it.FillBlock(block, patient); return err },
		"FillPack": func() error {
			_, _, err := it.FillPack(pack, []Shape{{}, {Dims: []int64{2}}}, 100, patient)
			return err
		},
		"Model":   func() error { _, err := it.Model(); return err },
		"Metered": func() error { _, err := it.Metered("nothing"); return err },
	} {
		if err := call(); err != ErrCancelled {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// An iterator keeps the message of its last error in C. The test uses long messages. If they leaked, each round would add
// all of them to the memory of the process. Memory that TensorFlow and the allocator retain is counted only once.
// Fragments of the heap add up to 5 MB to a round, however many iterators it has, so half of a round's messages is more.
func TestAClosedIteratorLeaksNoMessage(t *testing.T) {
	const iterators, message, rounds = 60, 1 << 18, 5
	if freedBytes > rounds*iterators*message {
		t.Skip("AddressSanitizer keeps freed memory for a while, so the memory of the process says nothing")
	}
	c := newContext(t)
	var stayed []int64
	for range rounds {
		before := resident(t)
		for range iterators {
			it, err := c.NewIterator(graphFile(t, "wordy"), []DataType{Int64})
			if err != nil {
				t.Fatal(err)
			}
			element, err := it.Next()
			ReleaseAll(element)
			it.Close()
			var own *Error
			if !errors.As(err, &own) || len(own.Message) < message {
				t.Fatalf("no message of %d bytes: %.100v", message, err)
			}
		}
		stayed = append(stayed, resident(t)-before)
		if stayed[len(stayed)-1] < iterators*message/2 {
			return
		}
	}
	t.Fatalf("%d errors of %d bytes a round left %d bytes behind", iterators, message, stayed)
}
