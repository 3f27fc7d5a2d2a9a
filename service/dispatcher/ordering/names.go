package ordering

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// name gives the name of a step in sentences.
func (p *proposer) name(i int) string { return p.called[p.steps[i]] }

// stepNames gives the names of steps in sentences: the author's label if it is unique, otherwise the graph's node
// name.
func stepNames(all []graphorder.Traits) []string {
	users := map[string]int{}
	for i := range all {
		users[all[i].Label]++
		users[all[i].Node]++
	}
	called := make([]string, len(all))
	for i := range all {
		if called[i] = all[i].Label; called[i] == "" || users[called[i]] > 1 {
			called[i] = all[i].Node
		}
	}
	return called
}

// traitNames lists a step's traits.
func (p *proposer) traitNames(t *graphorder.Traits) (words []string) {
	say := func(is bool, format string, args ...any) {
		if is {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	say(t.Passes, "passes elements on")
	say(t.Barrier != "", "fixed: %s", t.Barrier)
	say(len(t.Reads) > 0, "reads %s", numbers(t.Reads))
	say(len(t.Writes) > 0, "writes %s", numbers(t.Writes))
	for i, c := range t.Changes {
		words = append(words, fmt.Sprintf("%s %d", changeNames(t, i), c.Component))
	}
	say(t.Drops, "drops elements")
	say(t.Batches, "makes batches")
	say(t.Random && p.keyed[t.Node], "random, by the number of the element")
	say(t.Random && !p.keyed[t.Node], "random")
	say(t.Stateful, "stateful")
	say(t.Checks != "", "checks (%s)", t.Checks)
	say(t.CanFail != "" && t.CanFail != t.Checks, "can fail (%s)", t.CanFail)
	return words
}

// changeNames says what a step does to the values of a component that it writes.
func changeNames(t *graphorder.Traits, i int) string {
	c := t.Changes[i]
	before, after := t.Before[c.Component], t.After[c.Component]
	var what []string
	say := func(is bool, word string) {
		if is {
			what = append(what, word)
		}
	}
	say(before.GetDtype() != after.GetDtype(), "retypes")
	say(c.Computes, "computes")
	say(c.Mixes != 0, "mixes")
	say(c.Moves != 0, "moves")
	say(c.Sizes != 0, "resizes")
	if c.Opaque != "" || len(what) == 0 {
		return "changes"
	}
	return strings.Join(what, "+")
}

func numbers(all []int) string {
	words := make([]string, len(all))
	for i, n := range all {
		words[i] = fmt.Sprint(n)
	}
	return strings.Join(words, ", ")
}

func typeName(dtype int32) string { return frame.DTypeName(uint32(dtype)) }

func width(spec *pecanv1.ComponentSpec) float64 {
	return float64(max(frame.Width(uint32(spec.GetDtype())), 1))
}

// work gives the width in which processors compute: they convert 16-bit floats to 32 bits and back.
func work(spec *pecanv1.ComponentSpec) float64 {
	switch tf.DataType(spec.GetDtype()) {
	case tf.DataType_DT_HALF, tf.DataType_DT_BFLOAT16:
		return 4
	}
	return width(spec)
}
