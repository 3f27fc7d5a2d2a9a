package extents

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
)

const (
	// maxExtents bounds the extents of a dataset, because the graph lists them.
	maxExtents = 4096
	// minExtentBytes makes an extent worth the opening of its file.
	minExtentBytes = 1 << 20
	// enoughFiles is the number of files from which on files alone make enough streams, unless steps count records.
	enoughFiles = 64
	// maxCountedFiles and maxCountedBytes bound the files whose records are counted because steps count them.
	maxCountedFiles = 1024
	maxCountedBytes = 16 << 30
)

// extent has consecutive whole records of a file.
type extent struct {
	name            []byte
	offset, records int64
}

// extentsOf lists the extents of some records of the files of a step. It returns nil if a file has no index, or if the
// files are not worth dividing. counted is true if steps downstream count the records. It fails only if the context ends.
func extentsOf(ctx context.Context, src source, used Range, counted bool) ([]extent, error) {
	size := int64(0)
	for _, name := range src.names {
		info, err := os.Stat(string(name))
		if err != nil || !info.Mode().IsRegular() {
			return nil, nil
		}
		size += info.Size()
	}
	if size < 2*minExtentBytes || counted && len(src.names) > 1 && size > maxCountedBytes {
		return nil, nil
	}
	// If the context ends first, the reading continues: a later call finds the kept indexes.
	key := fmt.Sprintf("%d %d %t %d %s", used.From, used.To, src.inOrder(), src.cycle, bytes.Join(src.names, []byte{0}))
	found := reading.DoChan(key, func() (any, error) { return list(src, used) })
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case r := <-found:
		if r.Err != nil {
			return nil, nil
		}
		l := r.Val.(listed)
		if !counted && len(src.names) > 1 && l.full <= len(src.names) {
			// The files alone make as many streams.
			return nil, nil
		}
		return l.rows, nil
	}
}

// listed is a list of extents. full counts the blocks of as many records as an extent has at most.
type listed struct {
	rows []extent
	full int
}

// part is the records of one file that are used.
type part struct {
	name  []byte
	used  Range
	index Index
}

// parts returns the records of each file that are in a range of the records of all files.
func parts(names [][]byte, used Range) (all []part, err error) {
	at := int64(0)
	for _, name := range names {
		if at >= used.To {
			break
		}
		want := Range{max(0, used.From-at), math.MaxInt64}
		if used.To < math.MaxInt64 {
			want.To = used.To - at
		}
		if want.From > 0 && len(names) > 1 {
			// The count of its records shows whether the range begins in this file.
			x, err := indexOf(string(name), Range{0, want.To})
			if err != nil {
				return nil, err
			}
			if x.Records <= want.From {
				at += x.Records
				continue
			}
		}
		x, err := indexOf(string(name), want)
		if err != nil {
			return nil, err
		}
		all = append(all, part{name, want, x})
		at += want.From + x.Records
	}
	return all, nil
}

// list lists the extents of a range of the records of a step's files. If the step reads the files in order, an extent ends
// at each multiple of its number of records from the start of the range. It also ends at the end of each file. Then every
// block of that many records is a whole number of extents.
func list(src source, used Range) (listed, error) {
	files, err := parts(src.names, used)
	if err != nil {
		return listed{}, err
	}
	every, size, records := int64(1), int64(0), int64(0)
	for i := range files {
		x := &files[i].index
		for len(x.Offsets) > maxExtents/len(files) {
			x.thin()
		}
		every, size, records = max(every, x.Every), size+x.Bytes, records+x.Records
	}
	full := func() int64 { return (records + every - 1) / every }
	for n := full(); n > 1 && size/n < minExtentBytes; n = full() {
		every *= 2
	}
	lists := make([][]extent, len(files))
	at := int64(0)
	for i, f := range files {
		first := int64(0)
		if src.inOrder() {
			first = min(f.index.Records, (every-at%every)%every)
		}
		if lists[i], err = f.extents(first, every); err != nil {
			return listed{}, err
		}
		at += f.index.Records
	}
	return listed{inTurn(lists, src.cycle), int(full())}, nil
}

// extents lists the extents of the used records of a file. The first one has a given number of records if that is
// above 0.
func (f part) extents(first, every int64) (all []extent, err error) {
	x := f.index
	if first > 0 {
		all = append(all, extent{f.name, x.Offsets[0], first})
	}
	if first > 0 && first < x.Records {
		if x, err = indexOf(string(f.name), Range{f.used.From + first, f.used.To}); err != nil {
			return nil, err
		}
		if x.Records != f.index.Records-first || every%x.Every != 0 {
			return nil, fmt.Errorf("%s changed while it was read", f.name)
		}
		first = 0
	}
	for at := int64(0); at < x.Records-first; at += every {
		all = append(all, extent{f.name, x.Offsets[at/x.Every], min(every, x.Records-at)})
	}
	return all, nil
}

// inTurn joins lists as an interleave with a cycle length reads them: one extent of each list in turn. A list that has
// ended leaves its place to the next one.
func inTurn(lists [][]extent, cycle int) (all []extent) {
	open := lists[:min(cycle, len(lists))]
	open, lists = append([][]extent(nil), open...), lists[len(open):]
	for len(open) > 0 {
		for i := 0; i < len(open); {
			if len(open[i]) > 0 {
				all, open[i] = append(all, open[i][0]), open[i][1:]
				i++
				continue
			}
			if len(lists) > 0 {
				open[i], lists = lists[0], lists[1:]
				continue
			}
			open = append(open[:i], open[i+1:]...)
		}
	}
	return all
}
