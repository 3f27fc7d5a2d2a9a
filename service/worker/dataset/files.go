package dataset

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/worker/objects"
)

// mostAhead is how far the clock of a file server may be ahead of this host's.
const mostAhead = time.Minute

// FileState returns how a file looks: its size and time, and of an object in a store its generation too. found is false if no file
// has that name. Without an error, the state is a version of the file. An error says why its version is not known.
func FileState(ctx context.Context, name string) (state string, found bool, err error) {
	if objects.Names(name) {
		version, found, err := objects.Stat(ctx, name)
		if err != nil {
			return "", found, err
		}
		return version.String(), found, nil
	}
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return "", false, nil
	}
	state = fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
	if age, least := time.Since(info.ModTime()), leastAge(info.ModTime()); -mostAhead < age && age < least {
		return state, true, fmt.Errorf("%s was changed less than %v ago: its next change may not be visible in its time", name, least)
	}
	return state, true, nil
}

// leastAge returns how old a change is before the next one certainly has another time. Kernels advance the times of files with their
// ticks. Some file systems store whole seconds, or even seconds.
func leastAge(changed time.Time) time.Duration {
	if changed.Nanosecond() == 0 {
		return 2 * time.Second
	}
	return 20 * time.Millisecond
}

// IsObject reports whether a name belongs to an object in a store, whose state costs a request.
func IsObject(name string) bool { return objects.Names(name) }

// FileStates returns the states of the names that are files, or may be ones.
func FileStates(ctx context.Context, names []string) map[string]rewrite.FileState {
	states := map[string]rewrite.FileState{}
	for _, name := range names {
		if state, found, err := FileState(ctx, name); found || err != nil {
			states[name] = rewrite.FileState{State: state, Version: err == nil}
		}
	}
	return states
}

// WithoutVersion returns the first of the files whose versions are not known, by name; "" if there is none.
func WithoutVersion(states map[string]rewrite.FileState) string {
	for _, name := range slices.Sorted(maps.Keys(states)) {
		if !states[name].Version {
			return name
		}
	}
	return ""
}

// Unchanged returns whether files certainly have not changed since FileStates returned their states.
func Unchanged(ctx context.Context, states map[string]rewrite.FileState) bool {
	for name, known := range states {
		now, found, err := FileState(ctx, name)
		if !found || err != nil || !known.Version || now != known.State {
			return false
		}
	}
	return true
}
