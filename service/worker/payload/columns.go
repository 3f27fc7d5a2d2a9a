package payload

import (
	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
)

// Columns are elements of one shape, laid out by component.
type Columns struct {
	Block *tf.Block
	// Own holds the components if the elements were copied out of the block and the block is reused.
	Own   [][]byte
	Count int
	Home  *Pool[*tf.Block]
}

// Frame implements Body.
func (c *Columns) Frame(from int) Parts {
	out := Parts{Flags: frame.Columns, Components: len(c.Block.Columns)}
	var p Builder
	for i := range c.Block.Columns {
		column := &c.Block.Columns[i]
		p.Align()
		begin := p.at
		if c.Own != nil {
			p.Add(c.Own[i][from*column.Width:])
		} else {
			p.Add(c.Block.Rows(i, from, c.Count))
		}
		out.Rows = AppendRow(out.Rows, column.DType, column.Dims, p.at-begin)
	}
	out.Buffers, out.Raw = p.Buffers, p.at
	return out
}

// Release implements Body.
func (c *Columns) Release() {
	if c.Own == nil {
		c.Home.Put(c.Block)
	}
}
