package bindings

import (
	"os"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/extents"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

const (
	// maxStats is the largest number of files whose sizes are read. In a longer list, evenly spaced files stand for all.
	maxStats = 2048
	// statsTimeout bounds the time for that, for file systems that answer slowly.
	statsTimeout = 500 * time.Millisecond
	// maxSampled is the largest number of files whose first sampledBytes are searched for records.
	maxSampled, sampledBytes = 4, 1 << 20
)

// fileSizes returns the size of the files that the constants of a dataset name, and about how many records they have. A size is
// 0 if it is not known. A name may be no file on this host, such as the URL of a remote file, or the file system may be
// slow. The records are known only if one list names the files, all of which are uncompressed TFRecord files.
func fileSizes(g *graph.Graph, deadline time.Time) (size, records int64) {
	var lists [][][]byte
	_ = g.EachNode(func(n *tf.NodeDef, function string) error {
		names, ok := nodedef.Strings(n)
		if !ok || function != "" || len(nodedef.Tensor(n).GetTensorShape().GetDim()) != 1 {
			return nil
		}
		if listed := listedBytes(names, deadline); listed > 0 {
			size, lists = size+listed, append(lists, names)
		}
		return nil
	})
	if len(lists) != 1 {
		return size, 0
	}
	return size, listedRecords(lists[0], size, deadline)
}

// sizesDeadline returns the time up to which fileSizes may work for a job in a mode.
func sizesDeadline(mode pecanv1.Mode) time.Time {
	if mode == pecanv1.Mode_MODE_DETERMINISTIC {
		// A later run must have as many streams, however fast the file system is.
		return time.Time{}
	}
	return time.Now().Add(statsTimeout)
}

// listedBytes is the size of the files in a list, 0 if it is not known.
func listedBytes(names [][]byte, deadline time.Time) int64 {
	step := max(1, (len(names)+maxStats-1)/maxStats)
	read, bytes := int64(0), int64(0)
	for i := 0; i < len(names); i += step {
		info, err := os.Stat(string(names[i]))
		if err != nil || !info.Mode().IsRegular() || passed(deadline) {
			return 0
		}
		read, bytes = read+1, bytes+info.Size()
	}
	if read == 0 {
		return 0
	}
	return int64(float64(bytes) / float64(read) * float64(len(names)))
}

// listedRecords is about the number of records in the files of a list that have this size, 0 if it is not known. The mean size
// of the first records of evenly spaced files stands for all.
func listedRecords(names [][]byte, size int64, deadline time.Time) int64 {
	records, read := int64(0), int64(0)
	sampled := min(maxSampled, len(names))
	for i := range sampled {
		n, bytes, err := extents.SampleRecords(string(names[(2*i+1)*len(names)/(2*sampled)]), sampledBytes)
		if err != nil || passed(deadline) {
			return 0
		}
		records, read = records+n, read+bytes
	}
	if read == 0 {
		return 0
	}
	return int64(float64(size) * float64(records) / float64(read))
}

// passed reports whether a deadline has passed. The zero time is no deadline.
func passed(deadline time.Time) bool { return !deadline.IsZero() && time.Now().After(deadline) }
