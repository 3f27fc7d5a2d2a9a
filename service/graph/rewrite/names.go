package rewrite

import (
	"strings"

	"github.com/pecan-ml/pecan/service/graph/split"
)

// pullPrefix begins the names of nodes that read from PecanPull. The names of other added nodes contain the
// name of their original node, so that metrics can be assigned to it.
const pullPrefix = "pecan_pull"

// PullNode is the node that returns the elements of PecanPull.
const PullNode = pullPrefix

// pullElements is the node that takes the elements out of packs from PecanPull.
const pullElements = pullPrefix + "/elements"

// OriginalNode returns the node of the registered graph for a node of a stream graph. That is the node itself if it is
// registered, and the node upstream for a cut. It is "" for the sources and options that Pecan adds.
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
