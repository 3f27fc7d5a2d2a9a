package autocache

import "fmt"

// DecideOrdered decides in the registered order of the steps and in another one, and returns the decision with the
// lower score over all expected epochs. Both inputs have the same candidates, with their costs and stored shares in the
// order of the input. A candidate that an order cannot have is illegal in its input. inForce says whether that order is
// used now. A change must save more than the margin, as in Decide. Both inputs must be valid.
func DecideOrdered(registered, ordered Input, inForce bool) (d Decision, useOrdered bool) {
	in, other := Decide(registered), Decide(ordered)
	name, otherName := "registered", "decided"
	if inForce {
		in, other, name, otherName = other, in, otherName, name
	}
	epochs := max(in.Epochs, other.Epochs)
	total, otherTotal := in.over(epochs, in.Choice), other.over(epochs, other.Choice)
	if useOrdered = inForce; otherTotal < total*(1-margin) {
		in, name, otherName, total, otherTotal, useOrdered = other, otherName, name, otherTotal, total, !inForce
	}
	why := fmt.Sprintf("would cost %.3g %% more", 100*(otherTotal/total-1))
	if otherTotal <= total*(1+margin) {
		why = fmt.Sprintf("would save less than %.0f %%", 100*margin)
	}
	in.Reason += fmt.Sprintf("; the steps have the %s order, because the %s one %s", name, otherName, why)
	return in, useOrdered
}
