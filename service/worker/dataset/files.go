package dataset

import (
	"fmt"
	"os"
)

// FileState returns the size and the time of a file.
func FileState(name string) (state string, ok bool) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return "", false
	}
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano()), true
}

// FileStates returns the states of the names that are files.
func FileStates(names []string) map[string]string {
	states := map[string]string{}
	for _, name := range names {
		if state, ok := FileState(name); ok {
			states[name] = state
		}
	}
	return states
}
