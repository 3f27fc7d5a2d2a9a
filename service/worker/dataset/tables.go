package dataset

import (
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/pecan-ml/pecan/service/graph/rewrite"

	"github.com/pecan-ml/pecan/native/tf"
)

// maxUnusedSets bounds the unused sets of tables that are kept. Jobs use theirs again with every stream, and
// filling them may take long.
const maxUnusedSets = 4

// Tables frees the tables and variables that streams share by name, when no stream needs them. The content of a
// name never changes: each state of a file has its own name.
type Tables struct {
	log *slog.Logger

	mu   sync.Mutex
	sets map[tableSet]*usedSet
	// names counts the sets, by runtime and name.
	names map[tableSet]int
	// unused are the sets without users, the most recently used one first.
	unused []*usedSet
}

// tableSet is what the iterators of one dataset use in one runtime. Each runtime has its own tables.
type tableSet struct {
	runtime *tf.Context
	names   string
}

type usedSet struct {
	tableSet
	shared []rewrite.Shared
	users  int
}

// NewTables makes an empty Tables.
func NewTables(log *slog.Logger) *Tables {
	return &Tables{log: log, sets: map[tableSet]*usedSet{}, names: map[tableSet]int{}}
}

// Use keeps the shared resources of an iterator until leave is called. Call Use before the iterator is made, and
// leave after it is freed.
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

// drop frees the resources that no other set has. An iterator that is about to use one of the names waits
// meanwhile, and makes the resource again.
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
		t.log.Warn("freeing tables failed", "error", err)
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
