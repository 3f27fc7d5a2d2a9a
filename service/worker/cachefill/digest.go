package cachefill

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// digest names what a stream's elements come from: the files whose names are in the graph, with sizes and times, and the TensorFlow that
// runs it. Strings that are no files of this host count as well, as such.
func digest(names []string) string {
	sum := sha256.New()
	version := strings.SplitN(tf.Version(), ".", 3)
	fmt.Fprintf(sum, "pecan source 1 %q\n", version[:min(2, len(version))])
	for _, name := range names {
		if state, ok := dataset.FileState(name); ok {
			fmt.Fprintf(sum, "%q %s\n", name, state)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}
