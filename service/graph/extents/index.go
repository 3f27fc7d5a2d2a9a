package extents

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

const (
	// headerSize is the length of a record and its checksum. footerSize is the checksum of the data.
	headerSize, footerSize = 12, 4
	// readBytes is how many bytes are read at once while records are short.
	readBytes = 64 << 10
	// maskDelta is the constant of the masked checksums of the format.
	maskDelta = 0xa282ead8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Index has the offset of every Every-th record of a range, and the number and the bytes of its records. Every is a power
// of two.
type Index struct {
	Offsets               []int64
	Every, Records, Bytes int64
}

// ReadIndex reads the index of a range of an uncompressed TFRecord file, with at most most offsets. It fails if the file
// changes meanwhile, or if the context ends.
func ReadIndex(ctx context.Context, name string, used Range, most int) (Index, error) {
	f, err := os.Open(name)
	if err != nil {
		return Index{}, err
	}
	defer func() { _ = f.Close() }()
	before, err := f.Stat()
	if err != nil {
		return Index{}, err
	}
	if !before.Mode().IsRegular() {
		return Index{}, fmt.Errorf("%s is not a regular file", name)
	}
	found, err := readIndex(ctx, f, before.Size(), used, most)
	if err != nil {
		return Index{}, fmt.Errorf("%s: %w", name, err)
	}
	// The name may meanwhile mean another file, and the workers open the name.
	after, err := os.Stat(name)
	if err != nil {
		return Index{}, err
	}
	if !os.SameFile(before, after) || before.Size() != after.Size() || !before.ModTime().Equal(after.ModTime()) {
		return Index{}, fmt.Errorf("%s changed while it was read", name)
	}
	return found, nil
}

func readIndex(ctx context.Context, f io.ReaderAt, size int64, used Range, most int) (Index, error) {
	found := Index{Every: 1}
	headers := headerReader{f: f}
	for offset, at := int64(0), int64(0); offset < size && at < used.To; at++ {
		if at%1024 == 0 && ctx.Err() != nil {
			return Index{}, fmt.Errorf("after the headers before byte %d: %w", offset, context.Cause(ctx))
		}
		length, err := headers.at(offset, size)
		if err != nil {
			return Index{}, err
		}
		length += headerSize + footerSize
		if at >= used.From {
			found.add(offset, length, most)
		}
		offset += length
	}
	return found, nil
}

// SampleRecords returns the number and the bytes of the records that begin in the first bytes of an uncompressed TFRecord
// file. It fails if one of them is damaged.
func SampleRecords(name string, first int64) (records, size int64, err error) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, 0, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Close() }()
	headers := headerReader{f: f}
	for size < min(first, info.Size()) {
		length, err := headers.at(size, info.Size())
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", name, err)
		}
		records, size = records+1, size+headerSize+length+footerSize
	}
	return records, size, nil
}

// add adds the next record of the range.
func (x *Index) add(offset, length int64, most int) {
	if x.Records%x.Every == 0 {
		if len(x.Offsets) >= most {
			x.thin()
		}
		if x.Records%x.Every == 0 {
			x.Offsets = append(x.Offsets, offset)
		}
	}
	x.Records, x.Bytes = x.Records+1, x.Bytes+length
}

// thin drops every second offset.
func (x *Index) thin() {
	kept := x.Offsets[:0]
	for i := 0; i < len(x.Offsets); i += 2 {
		kept = append(kept, x.Offsets[i])
	}
	x.Offsets, x.Every = kept, 2*x.Every
}

// headerReader reads the headers of records in ascending order.
type headerReader struct {
	f     io.ReaderAt
	start int64
	read  []byte
	// short is set if the record before was short, so the next headers are near.
	short bool
}

// at returns the length of the data of the record at an offset.
func (r *headerReader) at(offset, size int64) (int64, error) {
	if size-offset < headerSize+footerSize {
		return 0, fmt.Errorf("the record at byte %d is truncated", offset)
	}
	if offset+headerSize > r.start+int64(len(r.read)) {
		n := int64(headerSize)
		if r.short {
			n = min(readBytes, size-offset)
		}
		if int64(cap(r.read)) < n {
			r.read = make([]byte, n)
		}
		r.start, r.read = offset, r.read[:n]
		if _, err := r.f.ReadAt(r.read, offset); err != nil {
			return 0, err
		}
	}
	header := r.read[offset-r.start:][:headerSize]
	length := binary.LittleEndian.Uint64(header)
	sum := crc32.Checksum(header[:8], castagnoli)
	if (sum>>15|sum<<17)+maskDelta != binary.LittleEndian.Uint32(header[8:]) {
		return 0, fmt.Errorf("no record starts at byte %d", offset)
	}
	if length > uint64(size-offset-headerSize-footerSize) {
		return 0, fmt.Errorf("the record at byte %d is truncated", offset)
	}
	r.short = length < readBytes/4
	return int64(length), nil
}
