package dataset

import (
	"context"
	"fmt"
	"os"

	"github.com/pecan-ml/pecan/service/worker/objects"
)

// FileState returns the version of a file: its size and time, and of an object in a store its generation too. found is false
// if no file has that name. An error means that the version is not known.
func FileState(ctx context.Context, name string) (state string, found bool, err error) {
	if objects.Names(name) {
		version, found, err := objects.Stat(ctx, name)
		return version.String(), found, err
	}
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return "", false, nil
	}
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano()), true, nil
}

// IsObject reports whether a name belongs to an object in a store, whose state costs a request.
func IsObject(name string) bool { return objects.Names(name) }

// FileStates returns the states of the names that are files, as far as they are known.
func FileStates(ctx context.Context, names []string) map[string]string {
	states := map[string]string{}
	for _, name := range names {
		if state, found, err := FileState(ctx, name); found && err == nil {
			states[name] = state
		}
	}
	return states
}
