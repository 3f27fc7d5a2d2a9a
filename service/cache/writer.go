package cache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/golang/snappy"
	"golang.org/x/sys/unix"
)

// Writer writes one segment. It is not safe for concurrent use. After an error the caller must call Abort.
type Writer struct {
	// ctx ends the waits for LimitWriting.
	ctx    context.Context
	dir    *Dir
	name   string
	id     ID
	dtypes []uint32
	// compressAbove is the speed of the compressor, in bytes per second, from which on blocks are compressed. The first
	// block is the sample that measures it. raw is set if the others are not compressed.
	compressAbove float64
	raw           bool
	file          File
	*buffers
	at       uint64
	elements uint64
	inBlock  uint64
	blocks   []block
	// finished and sum, the segment's checksum, are set by Finish.
	finished bool
	sum      uint32
}

// buffers are the memory of one Writer at a time.
type buffers struct {
	// buffer has the chunks of the next block, and compressed is for compressed blocks.
	buffer, compressed []byte
}

// Uncompressed is a speed that no compressor has.
var Uncompressed = math.Inf(1)

// Create starts a segment of elements whose tensors have these dtypes. Blocks are compressed if that makes them at least a quarter
// smaller, and if the compressor is faster than a number of bytes per second. The first block decides it for the segment. When ctx
// ends, a Writer that waits for LimitWriting returns an error.
func (d *Dir) Create(ctx context.Context, name string, id ID, dtypes []uint32, compressAbove float64) (*Writer, error) {
	if !ValidName(name) || !strings.HasSuffix(name, segmentSuffix) || len(id.Key) > maxKeyBytes || len(id.Source) > maxSourceBytes {
		return nil, fmt.Errorf("write segment %q: not the name of a segment", name)
	}
	if err := d.reserve(int64(len(header))); err != nil {
		return nil, err
	}
	memory, kept := d.buffers.Get().(*buffers)
	if !kept {
		memory = new(buffers)
	}
	w := &Writer{ctx: ctx, buffers: memory, dir: d, name: name, id: id, dtypes: dtypes, compressAbove: compressAbove, raw: compressAbove == Uncompressed}
	file, err := d.fs.Create(w.temporaryName())
	if err != nil {
		return nil, fmt.Errorf("write segment %s: %w", name, err)
	}
	w.file = file
	if err := w.write([]byte(header)); err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	return w, nil
}

// temporaryName returns the name of the file until the segment is complete.
func (w *Writer) temporaryName() string {
	return strings.TrimSuffix(w.name, segmentSuffix) + writingSuffix
}

func (w *Writer) write(data []byte) error {
	if err := w.dir.limit.wait(w.ctx, len(data)); err != nil {
		return fmt.Errorf("write segment %s: %w", w.name, err)
	}
	n, err := w.file.Write(data)
	w.at += uint64(n)
	if err != nil {
		return fmt.Errorf("write segment %s: %w", w.name, err)
	}
	return nil
}

// Append appends elements. The caller may reuse the chunk's memory afterwards.
func (w *Writer) Append(c *Chunk) error {
	if size := len(w.buffer) + chunkBytes(c); size > maxBlock {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if c.Count < 1 || chunkBytes(c) > maxBlock {
		return fmt.Errorf("write segment %s: a chunk of %d elements and %d bytes", w.name, c.Count, c.Size())
	}
	w.buffer = appendChunk(w.buffer, c)
	w.inBlock += uint64(c.Count)
	if len(w.buffer) >= blockBytes {
		return w.flush()
	}
	return nil
}

// flush writes the buffered chunks as a block.
func (w *Writer) flush() error {
	if len(w.buffer) == 0 {
		return nil
	}
	gap := zeros[:aligned(w.at)-w.at]
	b := block{offset: w.at, elements: w.inBlock, raw: uint32(len(w.buffer))}
	stored := w.buffer
	if out := w.smaller(); out != nil {
		stored, b.flags = out, snappyBlock
	}
	b.stored, b.sum = uint32(len(gap)+len(stored)), checksum(gap, stored)
	if err := w.dir.reserve(int64(len(gap) + len(stored))); err != nil {
		return err
	}
	for _, data := range [][]byte{gap, stored} {
		if len(data) == 0 {
			continue
		}
		if err := w.write(data); err != nil {
			return err
		}
	}
	w.blocks = append(w.blocks, b)
	w.elements += w.inBlock
	w.inBlock = 0
	if w.buffer = w.buffer[:0]; cap(w.buffer) > 4*blockBytes {
		w.buffer, w.compressed = nil, nil
	}
	return nil
}

// smaller returns the block compressed; nil if that does not pay.
func (w *Writer) smaller() []byte {
	bound := snappy.MaxEncodedLen(len(w.buffer))
	if w.raw || bound < 0 {
		return nil
	}
	if cap(w.compressed) < bound {
		w.compressed = make([]byte, bound)
	}
	var out []byte
	took := cpuTime(func() { out = snappy.Encode(w.compressed[:bound], w.buffer) })
	small := len(out) < len(w.buffer)/4*3
	if sample := len(w.blocks) == 0; sample && (!small || float64(len(w.buffer)) < w.compressAbove*took.Seconds()) {
		w.raw = true
		return nil
	}
	if !small {
		return nil
	}
	return out
}

// cpuTime returns the CPU time of a computation. On a busy host, its duration says nothing of its cost.
func cpuTime(compute func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var began, ended unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &began)
	compute()
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ended)
	return time.Duration(ended.Nano() - began.Nano())
}

// Commit makes the segment's file complete and durable. The file is read only after the journal records it, which makes the
// segment a committed one. The Writer cannot be used afterwards.
func (w *Writer) Commit() (Segment, error) {
	out, err := w.commit()
	if err != nil {
		return out, errors.Join(err, w.Abort())
	}
	return out, nil
}

// Finish writes the rest of the segment, and waits for LimitWriting. Only Commit and Abort may follow. Commit calls it first.
func (w *Writer) Finish() error {
	if w.finished {
		return nil
	}
	if err := w.flush(); err != nil {
		return err
	}
	end := appendFooter(nil, footer{w.id, w.elements, w.dtypes, w.blocks})
	if len(end) > math.MaxUint32 {
		return fmt.Errorf("write segment %s: it has too many blocks", w.name)
	}
	w.sum = checksum(end)
	tail := binary.LittleEndian.AppendUint32(end, uint32(len(end)))
	tail = binary.LittleEndian.AppendUint32(tail, w.sum)
	tail = append(tail, footerMagic...)
	if err := w.dir.reserve(int64(len(tail))); err != nil {
		return err
	}
	if err := w.write(tail); err != nil {
		return err
	}
	w.finished = true
	return nil
}

// commit makes the segment durable before it has its final name, and the name durable before it returns.
func (w *Writer) commit() (out Segment, err error) {
	if err := w.Finish(); err != nil {
		return out, err
	}
	if err := w.file.Sync(); err != nil {
		return out, fmt.Errorf("sync segment %s: %w", w.name, err)
	}
	file := w.file
	w.file = nil
	if err := file.Close(); err != nil {
		return out, fmt.Errorf("close segment %s: %w", w.name, err)
	}
	if err := w.dir.fs.Rename(w.temporaryName(), w.name); err != nil {
		return out, fmt.Errorf("name segment %s: %w", w.name, err)
	}
	if err := w.dir.fs.SyncDir(); err != nil {
		return out, errors.Join(fmt.Errorf("sync the cache directory: %w", err), w.dir.Remove(w.name))
	}
	// Only now is it certain that no write goes on with the buffers.
	w.dir.buffers.Put(w.buffers)
	w.buffers = nil
	return Segment{Name: w.name, Bytes: int64(w.at), Checksum: w.sum, Elements: w.elements, ID: w.id}, nil
}

// Abort discards the segment and deletes its file.
func (w *Writer) Abort() error {
	var err error
	if w.file != nil {
		err = w.file.Close()
		w.file = nil
	}
	w.buffers = new(buffers)
	return errors.Join(err, w.dir.Remove(w.temporaryName()))
}
