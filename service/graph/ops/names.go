package ops

import (
	"strings"
)

// Names returns the set of the words in a text.
func Names(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}
