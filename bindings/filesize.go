package bindings

import (
	"os"
	"time"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

const (
	// maxStats is the largest number of files whose sizes are read. In a longer list, evenly spaced files stand for all.
	maxStats = 2048
	// statsTimeout bounds the time for that, for file systems that answer slowly.
	statsTimeout = 500 * time.Millisecond
)

// fileBytes returns the size of the files that the constants of a dataset name. It returns 0 if the size is not known.
// A name may be no file on this host, such as the URL of a remote file, or the file system may be slow.
func fileBytes(g *graph.Graph) int64 {
	total, deadline := int64(0), time.Now().Add(statsTimeout)
	_ = g.EachNode(func(n *tf.NodeDef, function string) error {
		names, ok := nodedef.Strings(n)
		if !ok || function != "" || len(nodedef.Tensor(n).GetTensorShape().GetDim()) != 1 {
			return nil
		}
		total += listedBytes(names, deadline)
		return nil
	})
	return total
}

// listedBytes is the size of the files in a list, 0 if it is not known.
func listedBytes(names [][]byte, deadline time.Time) int64 {
	step := max(1, (len(names)+maxStats-1)/maxStats)
	read, bytes := int64(0), int64(0)
	for i := 0; i < len(names); i += step {
		info, err := os.Stat(string(names[i]))
		if err != nil || !info.Mode().IsRegular() || time.Now().After(deadline) {
			return 0
		}
		read, bytes = read+1, bytes+info.Size()
	}
	if read == 0 {
		return 0
	}
	return int64(float64(bytes) / float64(read) * float64(len(names)))
}
