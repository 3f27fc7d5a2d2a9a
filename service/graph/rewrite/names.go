package rewrite

import (
	"strings"

	"github.com/pecan-ml/pecan/service/graph/split"
)

// Names of nodes that a stream graph adds. The original node is in the name, so that metrics find their way back.
const pullPrefix = "pecan_pull"

// PullNode is the step through which a graph gets what comes from PecanPull.
const PullNode = pullPrefix

// OriginalNode gives the node of the registered graph that a node of a stream graph stands for: itself for all that were
// there before, the node below for a cut, and nothing for our own sources and options.
func OriginalNode(name string) string {
	if rest, ok := strings.CutPrefix(name, split.CutPrefix); ok {
		if i := strings.LastIndex(rest, "/"); i > 0 {
			return rest[:i]
		}
		return rest
	}
	if strings.HasPrefix(name, "pecan_") {
		return ""
	}
	return name
}
