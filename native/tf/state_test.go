package tf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
)

// drain returns all remaining elements as text.
func drain(t *testing.T, it *Iterator, most int) []string {
	t.Helper()
	var out []string
	for len(out) < most {
		element, err := it.Next()
		if errors.Is(err, io.EOF) {
			return append(out, "end")
		}
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, tensor := range element {
			text += fmt.Sprint(tensor.Dims(), tensor.Data(), " ")
		}
		ReleaseAll(element)
		out = append(out, text)
	}
	return out
}

func saved(t *testing.T, it *Iterator) []byte {
	t.Helper()
	state, err := it.Save()
	if err != nil {
		t.Fatal(err)
	}
	defer state.Free()
	var out []byte
	if err := state.Write(func(data []byte) error { out = bytes.Clone(data); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestARestoredIteratorContinuesAtEveryIndex(t *testing.T) {
	c := newContext(t)
	for name, types := range map[string][]DataType{
		"mapped": {Int64}, "shuffled": {Int64}, "reshuffled": {Int64}, "interleaved": {Int64}, "interleaved_in_parallel": {Int64},
		"flattened": {Int64}, "windows": {Int64}, "grouped": {Int64}, "scanned": {Int64}, "zipped": {Int64, Int64}, "rebatched": {Int64},
		"padded": {Int64}, "joined": {Int64},
	} {
		t.Run(name, func(t *testing.T) {
			want := drain(t, newIterator(t, c, name, types...), 1<<20)
			it := newIterator(t, c, name, types...)
			for at := range want {
				state := saved(t, it)
				if got := drain(t, it, 1); fmt.Sprint(got) != fmt.Sprint(want[at:at+1]) {
					t.Fatalf("saved at %d: the iterator itself goes on with %v", at, got)
				}
				again := newIterator(t, c, name, types...)
				if err := again.Restore(state); err != nil {
					t.Fatal(err)
				}
				if got := drain(t, again, 1<<20); fmt.Sprint(got) != fmt.Sprint(want[at:]) {
					t.Fatalf("restored at %d: got %v\nwant %v", at, got, want[at:])
				}
				again.Close()
			}
		})
	}
}

func TestAnInvalidStateIsRefused(t *testing.T) {
	c := newContext(t)
	it := newIterator(t, c, "shuffled", Int64)
	drain(t, it, 10)
	state := saved(t, it)
	for what, bad := range map[string][]byte{"nothing": nil, "half": state[:len(state)/2], "text": []byte("no state at all"), "another graph's": saved(t, newIterator(t, c, "zipped", Int64, Int64))} {
		if err := newIterator(t, c, "shuffled", Int64).Restore(bad); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	closed := newIterator(t, c, "shuffled", Int64)
	closed.Close()
	if _, err := closed.Save(); !errors.Is(err, ErrCancelled) {
		t.Errorf("saved a closed iterator: %v", err)
	}
}
