package transport

import (
	"encoding/binary"

	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// largestElement returns the size of the frame's largest element, without padding.
func largestElement(h frame.Header, table *frame.Table) uint64 {
	var size, all uint64
	for i := range table.Rows {
		if table.Components > 0 && i%table.Components == 0 {
			all, size = max(all, size), 0
		}
		size += table.Rows[i].Bytes
	}
	all = max(all, size)
	if h.Flags&frame.Columns != 0 {
		return all / uint64(h.Count)
	}
	return all
}

// checkStrings compares the lengths of strings with the bytes that are there. For a columnar frame it returns where
// the strings of the first row begin.
func checkStrings(h frame.Header, table *frame.Table, data []byte) ([]uint64, error) {
	var starts []uint64
	copies := uint64(1)
	if h.Flags&frame.Columns != 0 {
		copies = uint64(h.Count)
	}
	for i := range table.Rows {
		row := &table.Rows[i]
		if row.DType != frame.DTString {
			continue
		}
		if starts == nil && copies > 0 && h.Flags&frame.Columns != 0 {
			starts = make([]uint64, len(table.Rows))
		}
		per, _ := frame.Elements(row.Dims)
		n := per * copies
		values := data[row.Offset : row.Offset+row.Bytes]
		left := row.Bytes - n*8
		for s := range n {
			length := binary.LittleEndian.Uint64(values[s*8:])
			if length > left {
				return nil, reason.New(reason.FrameCorrupt, "string %d has %d bytes where %d are left", s, length, left)
			}
			left -= length
		}
		if left != 0 {
			return nil, reason.New(reason.FrameCorrupt, "%d bytes after the last string", left)
		}
	}
	return starts, nil
}
