package payload

import (
	"github.com/pecan-ml/pecan/native/tf"
)

// bigString is the size from which strings are sent from TensorFlow's memory instead of being copied.
const bigString = 32 << 10

// Single is one element, sent from TensorFlow's own memory.
type single struct {
	tensors []*tf.Tensor
	Parts   Parts
}

// NewSingle takes ownership of the tensors.
func NewSingle(tensors []*tf.Tensor) *single {
	s := &single{tensors: tensors, Parts: Parts{Components: len(tensors)}}
	var p Builder
	for _, t := range tensors {
		p.Align()
		begin := p.at
		switch {
		case t.DType() != tf.String:
			p.Add(t.Data())
		case t.WireSize() >= bigString*t.Elements():
			for _, piece := range t.StringSegments() {
				p.Add(piece)
			}
		default:
			packed := make([]byte, t.WireSize())
			t.PackStrings(packed)
			p.Add(packed)
		}
		s.Parts.Rows = AppendRow(s.Parts.Rows, t.DType(), t.Dims(), p.at-begin)
	}
	s.Parts.Buffers, s.Parts.Raw = p.Buffers, p.at
	return s
}

// Frame implements Body.
func (s *single) Frame(int) Parts { return s.Parts }

// Release implements Body.
func (s *single) Release() { tf.ReleaseAll(s.tensors) }
