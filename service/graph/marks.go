package graph

import (
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// shardHint is the value of tf.data.experimental.SHARD_HINT in a graph.
const shardHint = -1

// IsHint reports whether a node is shard(SHARD_HINT, SHARD_HINT). find returns the node of an input.
func (g *Graph) IsHint(n *tf.NodeDef, find func(input string) *tf.NodeDef) bool {
	if n.GetOp() != "ShardDataset" {
		return false
	}
	shards, ok1 := nodedef.Int(find(n.GetInput()[1]))
	index, ok2 := nodedef.Int(find(n.GetInput()[2]))
	return ok1 && ok2 && shards == shardHint && index == shardHint
}

// Hints returns the shard hints outside of functions, and the path of one inside a function, "" if there is
// none.
func (g *Graph) Hints() (top []string, nested string) {
	for _, n := range g.order {
		if g.IsHint(n, g.NodeOf) {
			top = append(top, n.GetName())
		}
	}
	for _, f := range g.def.GetLibrary().GetFunction() {
		inside := map[string]*tf.NodeDef{}
		for _, n := range f.GetNodeDef() {
			inside[n.GetName()] = n
		}
		for _, n := range f.GetNodeDef() {
			if g.IsHint(n, func(input string) *tf.NodeDef { return inside[nodedef.InputNode(input)] }) {
				nested = nodedef.Path(f.GetSignature().GetName(), n)
			}
		}
	}
	return top, nested
}

// Authors fix the position of steps in two ways. pecan.keep_position() wraps a function: a node in its body
// has a name that begins with keepPositionMark. pecan.keep_position_of() puts one marked step before the
// fixed steps and one after them.

// keepPositionMark is the scope of the node in a function, and the prefix of the names of the two steps.
const keepPositionMark = "pecan_keep_position"

const (
	// KeepPositionBegin is the name of the step before the fixed steps, KeepPositionEnd of the step after
	// them.
	KeepPositionBegin, KeepPositionEnd = keepPositionMark + "_begin", keepPositionMark + "_end"
	// keepPositionScope is the prefix of the names of the nodes in functions.
	keepPositionScope = keepPositionMark + "/"
)

// MarkOf returns the mark of a step, "" for other nodes. A mark is a take(-1), which passes everything on,
// with a reserved user name. The user name of a step is in the step's metadata.
func (g *Graph) MarkOf(n *tf.NodeDef) string { return markOf(n, g.NodeOf) }

// markOf returns the mark of a node. find returns the node of an input.
func markOf(n *tf.NodeDef, find func(input string) *tf.NodeDef) string {
	if n.GetOp() != "TakeDataset" || len(n.GetAttr()["metadata"].GetS()) == 0 || len(n.GetInput()) < 2 {
		return ""
	}
	if count, ok := nodedef.Int(find(n.GetInput()[1])); !ok || count >= 0 {
		return ""
	}
	var metadata tf.Metadata
	if proto.Unmarshal(n.GetAttr()["metadata"].GetS(), &metadata) != nil {
		return ""
	}
	name := string(metadata.GetName())
	if name == KeepPositionBegin || name == KeepPositionEnd || readCacheMark(name) != nil {
		return name
	}
	return ""
}

// KeepsPosition reports whether a function itself has the mark.
func KeepsPosition(f *tf.FunctionDef) bool {
	for _, n := range f.GetNodeDef() {
		if strings.HasPrefix(n.GetName(), keepPositionScope) {
			return true
		}
	}
	return false
}

// Users mark steps whose elements may be cached with take(-1), which passes everything on. The names of these steps are
// cacheMark for pecan.cache(), and for pecan.cache_candidate() also one of the two kinds with the user's name. In between,
// unchanging says that files never change. Design notes 0008 and 0015 give the reasons.
const (
	cacheMark     = "pecan_cache"
	unchanging    = "_unchanging"
	candidateKind = "_candidate_"
	frozenKind    = "_frozen_"
	// maxCandidateName is the greatest length of the user's name.
	maxCandidateName = 64
)

// CacheMark is the mark of a step whose elements may be cached.
type CacheMark struct {
	// Name is the user's name for the step, "" for pecan.cache().
	Name string
	// Forced is set if the mark is pecan.cache().
	Forced bool
	// Freezes is set if random steps upstream leave the epoch out of their seeds, whether anything is cached or not.
	Freezes bool
	// Unchanging is set if the files that steps upstream open never change.
	Unchanging bool
}

func readCacheMark(name string) *CacheMark {
	kind, found := strings.CutPrefix(name, cacheMark)
	if !found {
		return nil
	}
	mark := &CacheMark{}
	if kind, mark.Unchanging = strings.CutPrefix(kind, unchanging); kind == "" {
		mark.Forced, mark.Freezes = true, true
		return mark
	}
	candidate := false
	if mark.Name, candidate = strings.CutPrefix(kind, candidateKind); !candidate {
		mark.Name, mark.Freezes = strings.CutPrefix(kind, frozenKind)
	}
	if !candidate && !mark.Freezes || mark.Name == "" || len(mark.Name) > maxCandidateName || strings.Trim(mark.Name, letters) != "" {
		return nil
	}
	return mark
}

// letters are the characters of a user's name for a candidate.
const letters = "_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// CacheMarkOf returns the mark of a step whose elements may be cached, nil for other nodes.
func (g *Graph) CacheMarkOf(n *tf.NodeDef) *CacheMark { return readCacheMark(g.MarkOf(n)) }

// Freezes reports whether the random steps upstream of a node leave the epoch out of their seeds because of its mark.
func (g *Graph) Freezes(n *tf.NodeDef) bool {
	mark := g.CacheMarkOf(n)
	return mark != nil && mark.Freezes
}

// NestedCacheMarks returns the marks inside of functions, by the path of their nodes. They have no effect.
func (g *Graph) NestedCacheMarks() map[string]*CacheMark {
	found := map[string]*CacheMark{}
	for _, f := range g.def.GetLibrary().GetFunction() {
		inside := map[string]*tf.NodeDef{}
		for _, n := range f.GetNodeDef() {
			inside[n.GetName()] = n
		}
		for _, n := range f.GetNodeDef() {
			mark := readCacheMark(markOf(n, func(input string) *tf.NodeDef { return inside[nodedef.InputNode(input)] }))
			if mark != nil {
				found[nodedef.Path(f.GetSignature().GetName(), n)] = mark
			}
		}
	}
	return found
}

// ReadOptions returns the options that an OptionsDataset sets.
func ReadOptions(n *tf.NodeDef) (*tf.Options, bool) {
	if n.GetOp() != "OptionsDataset" {
		return nil, false
	}
	var o tf.Options
	if err := proto.Unmarshal(n.GetAttr()["serialized_options"].GetS(), &o); err != nil {
		return nil, false
	}
	return &o, true
}
