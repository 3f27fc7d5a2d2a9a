package ordering

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// name returns the display name of a step by its index in steps.
func (p *proposer) name(i int) string { return p.displayNames[p.steps[i]] }

// stepNames returns the display names of steps: the author's label if it is unique, otherwise the node's name. Names of
// steps in functions have the position there, and the name of the step that calls the function.
func stepNames(all []graphorder.Traits) []string {
	users, position := map[string]int{}, map[string]int{}
	for i := range all {
		users[all[i].Label]++
		users[all[i].Node]++
	}
	names := make([]string, len(all))
	for i := range all {
		t := &all[i]
		if names[i] = t.Label; t.Label == "" || users[t.Label] > 1 {
			names[i] = strings.TrimPrefix(t.Node, t.Inside+graphorder.InFunction)
		}
		if t.Inside != "" {
			position[t.Inside]++
			names[i] = fmt.Sprintf("%s (step %d in %s)", names[i], position[t.Inside], t.Inside)
		}
	}
	return names
}

// traitNames lists a step's traits for people.
func (p *proposer) traitNames(t *graphorder.Traits) (names []string) {
	add := func(is bool, format string, args ...any) {
		if is {
			names = append(names, fmt.Sprintf(format, args...))
		}
	}
	add(t.Passes, "returns its input unchanged")
	add(t.Barrier != "", "fixed: %s", t.Barrier)
	add(len(t.Reads) > 0, "reads %s", numbers(t.Reads))
	add(len(t.Writes) > 0, "writes %s", numbers(t.Writes))
	for i, c := range t.Changes {
		names = append(names, fmt.Sprintf("%s %d", changeNames(t, i), c.Component))
	}
	add(t.Drops, "drops elements")
	add(t.Batches, "makes batches")
	add(t.Random && p.keyed[t.Node], "random, by the element's index")
	add(t.Random && !p.keyed[t.Node], "random")
	add(t.Stateful, "stateful")
	add(t.Checks != "", "checks (%s)", t.Checks)
	add(t.CanFail != "" && t.CanFail != t.Checks, "can fail (%s)", t.CanFail)
	return names
}

// changeNames describes the effect of a step on the values of a component that it writes.
func changeNames(t *graphorder.Traits, i int) string {
	c := t.Changes[i]
	before, after := t.Before[c.Component], t.After[c.Component]
	var names []string
	add := func(is bool, name string) {
		if is {
			names = append(names, name)
		}
	}
	add(before.GetDtype() != after.GetDtype(), "retypes")
	add(c.Computes, "computes")
	add(c.Mixes != 0, "combines")
	add(c.Moves != 0, "moves")
	add(len(c.Inserts) > 0, "fills")
	add(c.Sizes != 0, "resizes")
	if c.Opaque != "" || len(names) == 0 {
		return "changes"
	}
	return strings.Join(names, "+")
}

func numbers(all []int) string {
	texts := make([]string, len(all))
	for i, n := range all {
		texts[i] = fmt.Sprint(n)
	}
	return strings.Join(texts, ", ")
}

func typeName(dtype int32) string { return frame.DTypeName(uint32(dtype)) }

func width(spec *pecanv1.ComponentSpec) float64 {
	return float64(max(frame.Width(uint32(spec.GetDtype())), 1))
}

// work returns the bytes per value in which processors compute: they convert 16-bit floats to 32 bits and back.
func work(spec *pecanv1.ComponentSpec) float64 {
	switch tf.DataType(spec.GetDtype()) {
	case tf.DataType_DT_HALF, tf.DataType_DT_BFLOAT16:
		return 4
	}
	return width(spec)
}
