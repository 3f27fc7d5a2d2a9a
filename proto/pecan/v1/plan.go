package pecanv1

// HasClosing tells whether the epochs of a plan have a closing stream, which comes behind the others.
func (p *Plan) HasClosing() bool {
	way := p.GetBatchWay()
	return way == BatchWay_BATCH_WAY_REMAINDER || way == BatchWay_BATCH_WAY_CLOSING
}
