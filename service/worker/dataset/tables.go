package dataset

import (
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/pecan-ml/pecan/service/graph/rewrite"

	"github.com/pecan-ml/pecan/native/tf"
)

// maxUnusedSets is for how many sets of tables that nobody uses room is kept: jobs come back to theirs with every stream, and filling
// them may take long.
const maxUnusedSets = 4

// Tables frees the tables and variables that streams share by name, once they are of no use. What a name stands for never changes, and
// with every state of a file comes a new one.
type Tables struct {
	log *slog.Logger

	mu   sync.Mutex
	sets map[tableSet]*usedSet
	// names counts the sets, by runtime and name.
	names map[tableSet]int
	// unused are the sets that nobody uses, the one that was used last first.
	unused []*usedSet
}

// tableSet is what the iterators of one dataset use in one runtime: each has tables of its own.
type tableSet struct {
	runtime *tf.Context
	names   string
}

type usedSet struct {
	tableSet
	shared []rewrite.Shared
	users  int
}

func NewTables(log *slog.Logger) *Tables {
	return &Tables{log: log, sets: map[tableSet]*usedSet{}, names: map[tableSet]int{}}
}

// Use keeps what an iterator shares until leave is called: before the iterator is made, and once it is freed.
func (t *Tables) Use(runtime *tf.Context, shared []rewrite.Shared) (leave func()) {
	if len(shared) == 0 {
		return func() {}
	}
	names := make([]string, len(shared))
	for i, s := range shared {
		names[i] = s.Name
	}
	key := tableSet{runtime, strings.Join(names, "\n")}
	t.mu.Lock()
	defer t.mu.Unlock()
	set := t.sets[key]
	if set == nil {
		set = &usedSet{tableSet: key, shared: shared}
		t.sets[key] = set
		for _, name := range names {
			t.names[tableSet{runtime, name}]++
		}
	}
	if i := slices.Index(t.unused, set); i >= 0 {
		t.unused = slices.Delete(t.unused, i, i+1)
	}
	set.users++
	return func() { t.leave(set) }
}

func (t *Tables) leave(set *usedSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if set.users--; set.users > 0 {
		return
	}
	t.unused = slices.Insert(t.unused, 0, set)
	for len(t.unused) > maxUnusedSets {
		last := len(t.unused) - 1
		t.drop(t.unused[last])
		t.unused = slices.Delete(t.unused, last, last+1)
	}
}

// drop frees what no other set has. An iterator that is about to use one of the names waits meanwhile, and makes it anew.
func (t *Tables) drop(set *usedSet) {
	delete(t.sets, set.tableSet)
	var unused []rewrite.Shared
	for _, s := range set.shared {
		name := tableSet{set.runtime, s.Name}
		if t.names[name]--; t.names[name] == 0 {
			delete(t.names, name)
			unused = append(unused, s)
		}
	}
	if len(unused) == 0 {
		return
	}
	if err := freeTables(set.runtime, unused); err != nil {
		t.log.Warn("free tables", "error", err)
	}
}

func freeTables(runtime *tf.Context, unused []rewrite.Shared) error {
	serialised, err := rewrite.ReleaseGraph(unused)
	if err != nil {
		return err
	}
	types, err := OutputTypes(serialised)
	if err != nil {
		return err
	}
	it, err := runtime.NewIterator(serialised, types)
	if err == nil {
		it.Close()
	}
	return err
}
