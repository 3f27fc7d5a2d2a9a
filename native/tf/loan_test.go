package tf

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"
)

// lending is a source that lends an iterator to the op after each element.
type lending struct {
	it       *Iterator
	elements int
	bytes    int64
	// pulls counts the calls of the op, and all has what the source and the op have fetched.
	pulls int
	all   []string
}

func (s *lending) Pull() ([]*Tensor, error) { return nil, errors.New("the op must call PullOrLend") }

func (s *lending) PullOrLend(l *Loan) ([]*Tensor, error) {
	s.pulls++
	if err := s.reclaim(); err != nil {
		return nil, err
	}
	element, err := s.it.Next()
	if err != nil {
		return nil, err
	}
	s.all = append(s.all, string(element[0].Data()))
	s.it.Lend(l, s.elements, s.bytes)
	return element, nil
}

func (s *lending) reclaim() error {
	elements, _, err := s.it.Reclaim()
	for _, element := range elements {
		s.all = append(s.all, string(element[0].Data()))
		ReleaseAll(element)
	}
	return err
}

// lentGraph returns an iterator of a graph that pulls from a source.
func lentGraph(t *testing.T, c *Context, s Source) *Iterator {
	t.Helper()
	handle := RegisterSource(s)
	t.Cleanup(func() { RemoveSource(handle) })
	it, err := c.NewIterator(pullGraph(t, handle), []DataType{Int64, Float})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(it.Close)
	return it
}

// read returns the first components of all elements, and the number of errors.
func read(t *testing.T, it *Iterator) (all []string, failed int) {
	t.Helper()
	for {
		element, err := it.Next()
		switch {
		case errors.Is(err, io.EOF):
			return all, failed
		case err != nil:
			failed++
		default:
			all = append(all, string(element[0].Data()))
			ReleaseAll(element)
		}
	}
}

// The graph gets the same elements and errors in the same order as without a loan, and the source has all of them.
func TestAnOpFetchesFromALentIterator(t *testing.T) {
	c := newContext(t)
	for _, name := range []string{"batches", "failing_batches"} {
		want, failed := read(t, newIterator(t, c, name, Int64))
		for what, s := range map[string]struct {
			elements int
			bytes    int64
			// calls are the calls for a number of elements.
			calls func(n int) int
		}{
			"one by one":        {1, 1 << 20, func(n int) int { return (n+1)/2 + 1 }},
			"three at a time":   {3, 1 << 20, func(n int) int { return (n+3)/4 + 1 }},
			"by bytes":          {100, 1, func(n int) int { return (n+1)/2 + 1 }},
			"all":               {100, 1 << 20, func(int) int { return 2 }},
			"nothing is lent":   {0, 1 << 20, func(n int) int { return n + 1 }},
			"nothing, by bytes": {100, 0, func(n int) int { return n + 1 }},
		} {
			from := &lending{it: newIterator(t, c, name, Int64), elements: s.elements, bytes: s.bytes}
			it := lentGraph(t, c, from)
			got, broken := read(t, it)
			// It pulls no more.
			it.Close()
			if !slices.Equal(got, want) || broken != failed || !slices.Equal(from.all, want) {
				t.Errorf("%s, %s: %d elements and %d errors, want %d and %d; the source has %d", name, what, len(got), broken, len(want), failed, len(from.all))
			}
			if given, bad := from.it.Given(); given != uint64(len(want)) || bad != uint64(failed) {
				t.Errorf("%s, %s: %d elements and %d errors are counted", name, what, given, bad)
			}
			// The graph's parallel map may pull a few times more after the end.
			if least := s.calls(len(want)); failed == 0 && (from.pulls < least || from.pulls > least+4) {
				t.Errorf("%s, %s: the op has called %d times for %d elements, want %d", name, what, from.pulls, len(want), least)
			}
		}
	}
}

// A lent iterator that is closed is closed at once, and what the op has fetched is released.
func TestALentIteratorCanBeClosed(t *testing.T) {
	c := newContext(t)
	from := &lending{it: newIterator(t, c, "endless", Int64), elements: 100_000, bytes: 1 << 30}
	it := lentGraph(t, c, from)
	element, err := it.Next()
	if err != nil {
		t.Fatal(err)
	}
	ReleaseAll(element)
	closed := make(chan struct{})
	go func() {
		from.it.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("the iterator waits for the end of its loan")
	}
	// The graph has read some elements ahead.
	if n, err := readUntilError(it); errors.Is(err, io.EOF) || n > 20 {
		t.Errorf("%d elements of a closed iterator, then %v", n, err)
	}
}

// An iterator may be closed or cancelled before its source lends it.
func TestAnIteratorThatHasEndedIsNotLent(t *testing.T) {
	c := newContext(t)
	for what, end := range map[string]func(*Iterator){"closed": (*Iterator).Close, "cancelled": (*Iterator).Cancel} {
		it, l := newIterator(t, c, "endless", Int64), newLoan()
		end(it)
		it.Lend(l, 10, 1<<20)
		if l.it != nil {
			t.Errorf("a %s iterator is lent", what)
		}
		if _, err := it.Next(); !errors.Is(err, ErrCancelled) {
			t.Errorf("a %s iterator returns %v", what, err)
		}
	}
}

// Cancel ends a fetch of the op that would wait forever.
func TestALentIteratorCanBeCancelled(t *testing.T) {
	c := newContext(t)
	from := &lending{it: newIterator(t, c, "starved", Int64), elements: 100, bytes: 1 << 20}
	it := lentGraph(t, c, from)
	time.AfterFunc(200*time.Millisecond, from.it.Cancel)
	if _, failed := readUntilError(it); failed == nil || errors.Is(failed, io.EOF) {
		t.Errorf("the graph ends with %v", failed)
	}
}

func readUntilError(it *Iterator) (n int, err error) {
	for {
		element, err := it.Next()
		if err != nil {
			return n, err
		}
		ReleaseAll(element)
		n++
	}
}
