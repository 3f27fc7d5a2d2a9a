package cachefill

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// digest identifies what a stream's elements come from: the files that the graph names, with sizes and times,
// and the version of TensorFlow. Names that are no regular files of this host do not count.
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
