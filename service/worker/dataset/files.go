package dataset

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pecan-ml/pecan/service/worker/objects"
)

// FileState returns the version of a file: its size and time, and of an object in a store its generation too. found is false
// if no file has that name. An error means that the version is not known. If the reason is that the file has just changed, state is
// different from that of a known version.
func FileState(ctx context.Context, name string) (state string, found bool, err error) {
	if objects.Names(name) {
		version, found, err := objects.Stat(ctx, name)
		return version.String(), found, err
	}
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return "", false, nil
	}
	state = fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
	if age, least := time.Since(info.ModTime()), leastAge(info.ModTime()); age >= 0 && age < least {
		return "changing " + state, true, fmt.Errorf("%s was changed less than %v ago: its next change may not be visible in its time", name, least)
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

// FileStates returns the states of the names that are files. A state is empty if nothing of it is known.
func FileStates(ctx context.Context, names []string) map[string]string {
	states := map[string]string{}
	for _, name := range names {
		if state, found, err := FileState(ctx, name); found || err != nil {
			states[name] = state
		}
	}
	return states
}

// Unchanged returns whether files certainly have not changed since FileStates returned their states.
func Unchanged(ctx context.Context, states map[string]string) bool {
	for name, state := range states {
		now, found, err := FileState(ctx, name)
		if !found || err != nil || now != state {
			return false
		}
	}
	return true
}
