package pecanv1

// HasClosing tells whether the epochs of a plan have a closing stream, which comes behind the others.
func (p *Plan) HasClosing() bool {
	way := p.GetBatchStrategy()
	return way == BatchStrategy_BATCH_STRATEGY_REMAINDER || way == BatchStrategy_BATCH_STRATEGY_CLOSING
}
