package graph

// Refuses reports whether an op is refused inside of functions.
func (g *Graph) Refuses(op string) bool { return g.verdictOf(op, false).reason != "" }
