package pecanv1

// HasClosing reports whether the epochs of the plan have a closing stream. It comes after the numbered streams.
func (p *Plan) HasClosing() bool {
	strategy := p.GetBatchStrategy()
	return strategy == BatchStrategy_BATCH_STRATEGY_REMAINDER || strategy == BatchStrategy_BATCH_STRATEGY_CLOSING
}

// Add adds the counts of more to r.
func (r *Recovery) Add(more *Recovery) {
	r.Recomputed += more.GetRecomputed()
	r.Started += more.GetStarted()
	r.Restored += more.GetRestored()
	r.Saved += more.GetSaved()
	r.NotSaved += more.GetNotSaved()
	r.Damaged += more.GetDamaged()
}
