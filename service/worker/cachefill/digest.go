package cachefill

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// mostQuestions bounds how many objects in a store are asked for at once. Each costs a request.
const mostQuestions = 32

// digest identifies what a stream's elements come from: the files that the graph names, with their versions, and the version
// of TensorFlow. Names that are no regular files of this host and no objects do not count. An error means that the version of
// a file is not known.
func digest(ctx context.Context, names []string) (string, error) {
	states, objects := make([]string, len(names)), []int(nil)
	read := func(ctx context.Context, i int) error {
		state, found, err := dataset.FileState(ctx, names[i])
		if found {
			states[i] = fmt.Sprintf("%q %s\n", names[i], state)
		}
		return err
	}
	for i, name := range names {
		if dataset.IsObject(name) {
			objects = append(objects, i)
		} else if err := read(ctx, i); err != nil {
			return "", err
		}
	}
	if len(objects) > 0 {
		asked, ctx := errgroup.WithContext(ctx)
		asked.SetLimit(mostQuestions)
		for _, i := range objects {
			asked.Go(func() error { return read(ctx, i) })
		}
		if err := asked.Wait(); err != nil {
			return "", err
		}
	}
	version := strings.SplitN(tf.Version(), ".", 3)
	sum := sha256.New()
	fmt.Fprintf(sum, "pecan source 1 %q\n", version[:min(2, len(version))])
	for _, state := range states {
		sum.Write([]byte(state))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
