package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pecan-ml/pecan/proto/reason"
)

func TestAFrameComesBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	table := Table{Components: 2, Rows: []Tensor{{DType: 9, Bytes: 24, Dims: []uint64{}}, {DType: 4, Dims: []uint64{5, 2}, Bytes: 30}}}
	for name, h := range map[string]Header{
		"data":   {Type: Data, Flags: Columns | Checksum, Channel: 7, Count: 3, Index: 1 << 40, Lease: 12, PayloadCRC: 99, PayloadLen: 94, RawLen: 94},
		"credit": {Type: Credit, Channel: math.MaxUint32, Index: 5, Lease: math.MaxUint64, RawLen: math.MaxUint64},
		"ping":   {Type: Ping},
		"shared": {Type: Data, Flags: Shared, Count: 1, RawLen: 128},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meta := AppendTable(nil, h.Flags, &table)
			wire := Append(nil, h, meta)
			for reader, in := range map[string]io.Reader{"at once": bytes.NewReader(wire), "byte by byte": iotest.OneByteReader(bytes.NewReader(wire))} {
				r := NewReader(in)
				got, gotMeta, err := r.Next()
				h.MetaLen = uint32(len(meta))
				if err != nil || got != h || !bytes.Equal(gotMeta, meta) {
					t.Errorf("%s: got %+v with %d bytes of metadata, %v; want %+v with %d", reader, got, len(gotMeta), err, h, len(meta))
				}
				if _, _, err := r.Next(); err != io.EOF {
					t.Errorf("%s: after the last frame: %v", reader, err)
				}
			}
		})
	}
}

func TestMetaDataOfEverySizeIsRead(t *testing.T) {
	t.Parallel()
	var wire []byte
	sizes := []int{0, 1, 64 << 10, 64<<10 + 1, 200 << 10, 10, 100 << 10, MaxMeta}
	for i, n := range sizes {
		wire = Append(wire, Header{Type: Hello, Index: uint64(i)}, bytes.Repeat([]byte{byte(i)}, n))
	}
	r := NewReader(bytes.NewReader(wire))
	for i, n := range sizes {
		h, meta, err := r.Next()
		if err != nil || h.Index != uint64(i) || len(meta) != n || bytes.Count(meta, []byte{byte(i)}) != n {
			t.Fatalf("frame %d with %d bytes: got %+v, %d bytes, %v", i, n, h, len(meta), err)
		}
	}
}

// seal writes a header with a valid checksum over whatever its fields say.
func seal(change func(b []byte), meta []byte) []byte {
	b := Append(nil, Header{Type: Data, Count: 1, PayloadLen: 64, RawLen: 64}, meta)
	change(b)
	crc := crc32.Checksum(b[:60], Castagnoli)
	crc = crc32.Update(crc, Castagnoli, b[HeaderSize:])
	binary.LittleEndian.PutUint32(b[60:], crc)
	return b
}

func TestHostileHeadersAreRefused(t *testing.T) {
	t.Parallel()
	put16 := func(at int, v uint16) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint16(b[at:], v) }
	}
	put32 := func(at int, v uint32) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) }
	}
	put64 := func(at int, v uint64) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint64(b[at:], v) }
	}
	for name, tc := range map[string]struct {
		change func([]byte)
		want   reason.Reason
	}{
		"another protocol's bytes":          {func(b []byte) { copy(b, "GET ") }, reason.FrameCorrupt},
		"a newer version":                   {func(b []byte) { b[4] = 2 }, reason.VersionMismatch},
		"type 0":                            {func(b []byte) { b[5] = 0 }, reason.FrameCorrupt},
		"a type after the last":             {func(b []byte) { b[5] = byte(lastType) + 1 }, reason.FrameCorrupt},
		"an unknown flag":                   {put16(6, 1<<6), reason.FrameCorrupt},
		"no elements":                       {put32(12, 0), reason.FrameCorrupt},
		"an index without end":              {put64(16, math.MaxUint64), reason.FrameCorrupt},
		"an index that overflows by count":  {func(b []byte) { put64(16, math.MaxInt64)(b); put32(12, 2)(b) }, reason.FrameCorrupt},
		"metadata above the limit":          {put32(32, MaxMeta+1), reason.FrameCorrupt},
		"a payload above the limit":         {put64(40, MaxPayload+1), reason.FrameCorrupt},
		"a raw length above the limit":      {put64(48, MaxPayload+1), reason.FrameCorrupt},
		"less payload than it says it is":   {put64(40, 63), reason.FrameCorrupt},
		"more payload than it says it is":   {put64(40, 65), reason.FrameCorrupt},
		"a payload on a frame without data": {func(b []byte) { b[5] = byte(End) }, reason.FrameCorrupt},
		"a payload beside shared memory":    {put16(6, uint16(Shared)), reason.FrameCorrupt},
		"compression that makes it longer":  {func(b []byte) { put16(6, uint16(Snappy))(b); put64(40, 64+10+65)(b) }, reason.FrameCorrupt},
		"compressed shared memory":          {func(b []byte) { put16(6, uint16(Shared|Snappy))(b); put64(40, 0)(b) }, reason.FrameCorrupt},
		"reserved bytes that are not zero":  {put32(56, 1), reason.FrameCorrupt},
		"a payload length of all bits set":  {put64(40, math.MaxUint64), reason.FrameCorrupt},
		"metadata whose length is all bits": {put32(32, math.MaxUint32), reason.FrameCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := NewReader(bytes.NewReader(seal(tc.change, nil))).Next()
			if !reason.Is(err, tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	t.Parallel()
	wire := Append(nil, Header{Type: Data, Flags: Columns, Channel: 1, Count: 2, Index: 3, Lease: 4, PayloadLen: 5, RawLen: 5}, []byte("metadata"))
	for bit := range len(wire) * 8 {
		bad := bytes.Clone(wire)
		bad[bit/8] ^= 1 << (bit % 8)
		// More bytes follow, as on a connection, so that a longer meta length is not found out by their end.
		h, _, err := NewReader(io.MultiReader(bytes.NewReader(bad), bytes.NewReader(make([]byte, 1<<20)))).Next()
		if err == nil {
			t.Errorf("bit %d of byte %d: read as %+v", bit%8, bit/8, h)
		}
	}
}

func TestATornFrameIsNotAnEnd(t *testing.T) {
	t.Parallel()
	wire := Append(nil, Header{Type: Hello}, make([]byte, 100<<10))
	for _, n := range []int{1, 63, 64, 65, 1000, 90 << 10, len(wire) - 1} {
		if _, _, err := NewReader(bytes.NewReader(wire[:n])).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d of %d bytes: %v", n, len(wire), err)
		}
	}
}

func TestTablesComeBackAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flags Flags
		count uint32
		raw   uint64
		table Table
		size  uint64
	}{
		"one scalar":             {count: 1, raw: 8, table: Table{Components: 1, Rows: []Tensor{{DType: 9, Bytes: 8}}}, size: 8},
		"no components":          {count: 5, table: Table{}},
		"two elements of two":    {count: 2, raw: 200, table: Table{Components: 2, Rows: []Tensor{{DType: 9, Bytes: 8}, {DType: 4, Dims: []uint64{65}, Bytes: 65}, {DType: 9, Bytes: 8}, {DType: 4, Dims: []uint64{0}, Bytes: 0}}}, size: 200},
		"a columnar frame":       {flags: Columns, count: 10, raw: 80 + 48 + 40, table: Table{Components: 2, Rows: []Tensor{{DType: 9, Bytes: 80}, {DType: 1, Bytes: 40}}}, size: 168},
		"strings":                {count: 1, raw: 21, table: Table{Components: 1, Rows: []Tensor{{DType: DTString, Dims: []uint64{2}, Bytes: 21}}}, size: 21},
		"a slot":                 {flags: Shared, count: 1, raw: 8, table: Table{Slot: 1 << 63, Components: 1, Rows: []Tensor{{DType: 9, Bytes: 8}}}, size: 8},
		"zero beside a huge dim": {count: 1, table: Table{Components: 1, Rows: []Tensor{{DType: 9, Dims: []uint64{0, 1 << 62}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meta := AppendTable(nil, tc.flags, &tc.table)
			got := Table{Slot: 99, Rows: make([]Tensor, 3)}
			if err := ParseTable(Header{Type: Data, Flags: tc.flags, Count: tc.count, RawLen: tc.raw}, meta, &got); err != nil {
				t.Fatal(err)
			}
			if got.Components != tc.table.Components || len(got.Rows) != len(tc.table.Rows) || got.Size != tc.size || got.Slot != tc.table.Slot {
				t.Fatalf("got %+v, want %+v of %d bytes", got, tc.table, tc.size)
			}
			offset := uint64(0)
			for i, want := range tc.table.Rows {
				row := got.Rows[i]
				if row.DType != want.DType || row.Bytes != want.Bytes || want.Bytes > 0 && row.Offset != offset || len(row.Dims) != len(want.Dims) {
					t.Errorf("row %d: got %+v, want %+v at %d", i, row, want, offset)
				}
				offset = AlignUp(offset + want.Bytes)
			}
			if !bytes.Equal(AppendTable(nil, tc.flags, &got), meta) {
				t.Error("written again, it differs")
			}
		})
	}
}

func TestHostileTablesAreRefused(t *testing.T) {
	t.Parallel()
	many := make([]uint64, maxRank+1)
	for name, tc := range map[string]struct {
		flags Flags
		count uint32
		raw   uint64
		table Table
		tail  []byte
		cut   int
	}{
		"a size that is not the shape's":           {count: 1, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 9, Dims: []uint64{2}, Bytes: 8}}}},
		"a payload that is too short":              {count: 1, raw: 7, table: Table{Components: 1, Rows: []Tensor{{DType: 9, Bytes: 8}}}},
		"a shape that overflows":                   {count: 1, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 4, Dims: []uint64{1 << 32, 1 << 32}}}}},
		"a dim that is negative for TensorFlow":    {count: 1, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 4, Dims: []uint64{0, 1 << 63}}}}},
		"dims that overflow after a zero":          {count: 1, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 4, Dims: []uint64{1 << 40, 1 << 40, 0}}}}},
		"a columnar frame whose rows overflow":     {flags: Columns, count: math.MaxUint32, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 4, Dims: []uint64{1 << 40}, Bytes: 100}}}},
		"a columnar frame of half the rows":        {flags: Columns, count: 2, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 9, Bytes: 8}}}},
		"too many dims":                            {count: 1, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 4, Dims: many, Bytes: 0}}}},
		"a resource":                               {count: 1, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 20, Bytes: 1}}}},
		"a variant":                                {count: 1, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 21, Bytes: 1}}}},
		"dtype 0":                                  {count: 1, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: 0, Bytes: 1}}}},
		"strings without their lengths":            {count: 1, raw: 100, table: Table{Components: 1, Rows: []Tensor{{DType: DTString, Dims: []uint64{2}, Bytes: 15}}}},
		"more components than there may be":        {count: 1, raw: 100, table: Table{Components: MaxComponents + 1}},
		"components without rows":                  {count: 1, raw: 100, table: Table{Components: 1}},
		"more elements than rows":                  {count: math.MaxUint32, raw: 100, table: Table{Components: MaxComponents, Rows: []Tensor{{DType: 9, Bytes: 8}}}},
		"more payload than the table has use for":  {count: 1, raw: 8 + 3*Align, table: Table{Components: 1, Rows: []Tensor{{DType: 9, Bytes: 8}}}},
		"bytes after the table":                    {count: 1, raw: 8, table: Table{Components: 1, Rows: []Tensor{{DType: 9, Bytes: 8}}}, tail: []byte{0}},
		"a table that ends within the dims":        {count: 1, raw: 8, table: Table{Components: 1, Rows: []Tensor{{DType: 9, Dims: []uint64{1}, Bytes: 8}}}, cut: 4},
		"a table that ends within the first bytes": {count: 1, raw: 8, table: Table{Components: 1}, cut: 5},
		"a slot that is cut":                       {flags: Shared, count: 1, raw: 8, table: Table{Components: 1}, cut: 12},
		"dims in the place of the second row": {count: 2, raw: 200, table: Table{Components: 1, Rows: []Tensor{
			{DType: 9, Dims: []uint64{1, 1}, Bytes: 8}}}},
		"a payload of more than the limit": {count: 1, raw: MaxPayload, table: Table{Components: 2, Rows: []Tensor{
			{DType: 4, Dims: []uint64{MaxPayload}, Bytes: MaxPayload}, {DType: 4, Dims: []uint64{1}, Bytes: 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meta := append(AppendTable(nil, tc.flags, &tc.table), tc.tail...)
			meta = meta[:len(meta)-tc.cut]
			var got Table
			err := ParseTable(Header{Type: Data, Flags: tc.flags, Count: tc.count, RawLen: tc.raw}, meta, &got)
			if !reason.Is(err, reason.FrameCorrupt) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestNothingIsAllocatedForBytesThatDoNotCome(t *testing.T) {
	wire := seal(func(b []byte) { binary.LittleEndian.PutUint32(b[32:], MaxMeta) }, nil)
	if n := allocated(func() { _, _, _ = NewReader(bytes.NewReader(wire)).Next() }); n > 256<<10 {
		t.Errorf("%d bytes allocated for metadata of which none came", n)
	}
	meta := AppendTable(nil, 0, &Table{Components: MaxComponents})
	if n := allocated(func() { _ = ParseTable(Header{Type: Data, Count: math.MaxUint32}, meta, &Table{}) }); n > 64<<10 {
		t.Errorf("%d bytes allocated for a table of 8 bytes", n)
	}
}

func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestWidthReturnsTheBytesOfEachDtype(t *testing.T) {
	t.Parallel()
	for dtype, want := range map[uint32]uint64{0: 0, 1: 4, 2: 8, 7: 0, 9: 8, 10: 1, 14: 2, 18: 16, 19: 2, 20: 0, 21: 0, 24: 1, 25: 1, 29: 1, 34: 0, 101: 0} {
		if got := Width(dtype); got != want {
			t.Errorf("dtype %d: %d bytes, want %d", dtype, got, want)
		}
	}
}

func TestTypesHaveNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for typ := range lastType + 1 {
		name := typ.String()
		if seen[name] || strings.Contains(name, "(") {
			t.Errorf("type %d is called %q", typ, name)
		}
		seen[name] = true
	}
	if got := Type(200).String(); got != "type(200)" {
		t.Errorf("unknown type is called %q", got)
	}
}

// FuzzFrame feeds the reader whatever it likes: it must neither panic nor hand out a table that does not fit.
func FuzzFrame(f *testing.F) {
	table := Table{Components: 2, Rows: []Tensor{{DType: 9, Bytes: 8}, {DType: DTString, Dims: []uint64{1}, Bytes: 9}}}
	f.Add(Append(nil, Header{Type: Data, Count: 1, PayloadLen: 73, RawLen: 73}, AppendTable(nil, 0, &table)))
	f.Add(Append(nil, Header{Type: Data, Flags: Columns | Shared, Count: 1, RawLen: 73}, AppendTable(nil, Shared, &table)))
	f.Add(Append(nil, Header{Type: Data, Flags: Snappy, Count: 1, PayloadLen: 9, RawLen: 73}, AppendTable(nil, 0, &table)))
	f.Add(Append(nil, Header{Type: Error, Index: 3}, []byte("\x08\x03")))
	f.Fuzz(func(t *testing.T, wire []byte) {
		// The test sets the right checksum. Otherwise, no code after its check would run.
		if len(wire) >= HeaderSize {
			n := min(int(binary.LittleEndian.Uint32(wire[32:])), len(wire)-HeaderSize)
			crc := crc32.Checksum(wire[:60], Castagnoli)
			binary.LittleEndian.PutUint32(wire[60:], crc32.Update(crc, Castagnoli, wire[HeaderSize:HeaderSize+max(0, n)]))
		}
		h, meta, err := NewReader(bytes.NewReader(wire)).Next()
		if err != nil {
			return
		}
		if h.Type != Data {
			return
		}
		var got Table
		if err := ParseTable(h, meta, &got); err != nil {
			return
		}
		checkTable(t, h, &got)
		if again := AppendTable(nil, h.Flags, &got); len(again) != len(meta) {
			t.Errorf("table of %d bytes is written with %d", len(meta), len(again))
		}
	})
}

func checkTable(t *testing.T, h Header, table *Table) {
	t.Helper()
	end := uint64(0)
	for i := range table.Rows {
		row := &table.Rows[i]
		for _, dim := range row.Dims {
			if dim > math.MaxInt64 {
				t.Errorf("row %d: dim %d", i, dim)
			}
		}
		if row.Bytes == 0 {
			continue
		}
		if row.Offset < end || row.Offset%Align != 0 || row.Bytes > h.RawLen || row.Offset > h.RawLen-row.Bytes {
			t.Errorf("row %d: %d bytes at %d of %d", i, row.Bytes, row.Offset, h.RawLen)
		}
		end = row.Offset + row.Bytes
	}
	if want := table.Components * int(h.Count); h.Flags&Columns == 0 && len(table.Rows) != want {
		t.Errorf("%d rows, want %d", len(table.Rows), want)
	}
}

func TestTheLimitOfMetaDataCanBeLoweredAndLifted(t *testing.T) {
	long := Append(nil, Header{Type: Open, Channel: 1}, make([]byte, 1000))
	r := NewReader(bytes.NewReader(append(bytes.Clone(long), long[:HeaderSize]...)))
	r.LimitMeta(1000)
	if _, meta, err := r.Next(); err != nil || len(meta) != 1000 {
		t.Fatal(len(meta), err)
	}
	r.LimitMeta(999)
	if _, _, err := r.Next(); !reason.Is(err, reason.FrameCorrupt) {
		t.Fatalf("got %v", err)
	}
	r = NewReader(bytes.NewReader(long))
	r.LimitMeta(10)
	r.LimitMeta(0)
	if _, _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
}
