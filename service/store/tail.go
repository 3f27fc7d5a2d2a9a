package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble's log is a sequence of blocks, and a record is one or more chunks. Chunks do not cross blocks. The unused end of a
// block is zero. A chunk has these parts:
//
//   - the checksum (4 bytes)
//   - the length of the payload (2 bytes)
//   - the kind (1 byte)
//   - the number of the log (4 bytes)
//   - an offset that is already on disk (8 bytes, newer form only)
//   - the payload
const (
	logBlock    = 32 << 10
	sectorBytes = 512

	olderHeader, newerHeader = 11, 19
	// Each form has four kinds of chunks: a complete record, or its first, a middle or its last part.
	olderFull, newerFull                      = 5, 9
	partFull, partFirst, partMiddle, partLast = 0, 1, 2, 3
)

// Tail describes the end of the newest log of a store.
type Tail struct {
	// Log is the path of the log, empty if there is none.
	Log string
	// End is the offset after the last complete record; Size is the length of the file.
	End, Size int64
	// Torn is set if a torn write follows End: the start of a record that was never acknowledged.
	Torn bool
	// Damage describes damage after End that may affect acknowledged records; empty if there is none.
	Damage string
}

// readTail reads the newest log and returns the bytes after its last complete record. Pebble treats unreadable bytes
// there as the end of the log. A complete record with a wrong checksum is not torn, and may have been acknowledged.
func readTail(fsys vfs.FS, dir string) (Tail, []byte, error) {
	path, number, err := newestLog(fsys, dir)
	if err != nil || path == "" {
		return Tail{}, nil, err
	}
	file, err := fsys.Open(path)
	if err != nil {
		return Tail{}, nil, err
	}
	data, err := io.ReadAll(file)
	if err = joinClose(err, file); err != nil {
		return Tail{}, nil, err
	}
	end, damage := scanLog(data, uint32(number))
	tail := Tail{Log: path, End: int64(end), Size: int64(len(data)), Damage: damage}
	rest := bytes.TrimRight(data[end:], "\x00")
	tail.Torn = damage == "" && len(rest) > 0 && !bytes.Equal(rest, trailer(uint32(number)))
	return tail, rest, nil
}

func joinClose(err error, file io.Closer) error {
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// newestLog returns the log with the largest number.
func newestLog(fsys vfs.FS, dir string) (path string, newest uint64, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return "", 0, err
	}
	for _, name := range names {
		digits, ok := strings.CutSuffix(name, ".log")
		number, err := strconv.ParseUint(digits, 10, 64)
		if ok && err == nil && (path == "" || number > newest) {
			path, newest = filepath.Join(dir, name), number
		}
	}
	return path, newest, nil
}

// scanLog returns the end of the last complete record, and a description of damage after it. damage is empty if a torn
// write explains the rest.
func scanLog(data []byte, number uint32) (end int, damage string) {
	at, inside := 0, false
	for {
		left := min(logBlock-at%logBlock, len(data)-at)
		if left == 0 {
			return end, ""
		}
		if at%logBlock+newerHeader > logBlock && allZero(data[at:at+left]) {
			// No chunk fits into the rest of this block.
			at += left
			continue
		}
		c, ok := parseChunk(data[at:at+left], number)
		switch {
		case !ok, !c.whole:
			return end, ""
		case !c.valid && c.hasZeroSector(at):
			return end, ""
		case !c.valid:
			return end, fmt.Sprintf("the record at offset %d is complete, but its checksum is wrong", end)
		case inside != (c.part == partMiddle || c.part == partLast):
			return end, fmt.Sprintf("the part of a record at offset %d does not continue the previous part", at)
		}
		at += c.header + len(c.payload)
		if inside = c.part == partFirst || c.part == partMiddle; !inside {
			end = at
		}
	}
}

// logChunk is a chunk of a record in a log.
type logChunk struct {
	part, header int
	payload      []byte
	// whole is set if the file has all of the chunk; valid is set if the checksum is right.
	whole, valid bool
}

// parseChunk parses a chunk at the start of block. It returns false if there is no chunk of this log.
func parseChunk(block []byte, number uint32) (logChunk, bool) {
	if len(block) < olderHeader {
		return logChunk{}, false
	}
	length, kind := int(binary.LittleEndian.Uint16(block[4:])), int(block[6])
	c := logChunk{part: kind - olderFull, header: olderHeader}
	if kind >= newerFull {
		c = logChunk{part: kind - newerFull, header: newerHeader}
	}
	if c.part < partFull || c.part > partLast || binary.LittleEndian.Uint32(block[7:]) != number {
		return logChunk{}, false
	}
	end := c.header + length
	if end > len(block) {
		return c, true
	}
	c.payload, c.whole = block[c.header:end], true
	c.valid = maskedSum(block[6:end]) == binary.LittleEndian.Uint32(block)
	return c, true
}

// maskedSum returns pebble's checksum of a chunk.
func maskedSum(data []byte) uint32 {
	sum := crc32.Checksum(data, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

// hasZeroSector reports whether a sector of the chunk is zero: that sector never reached the disk. at is the offset of
// the chunk in the log.
func (c logChunk) hasZeroSector(at int) bool {
	for begin, rest := at+c.header, c.payload; len(rest) > 0; {
		n := min(sectorBytes-begin%sectorBytes, len(rest))
		if allZero(rest[:n]) {
			return true
		}
		begin, rest = begin+n, rest[n:]
	}
	return false
}

func allZero(data []byte) bool {
	return !slices.ContainsFunc(data, func(b byte) bool { return b != 0 })
}

// trailer returns the bytes that pebble writes at the end of a log when it closes the log, without the zeros after them.
// They are an empty chunk with the number of the next log.
func trailer(number uint32) []byte {
	return bytes.TrimRight(binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0, 0, 0, olderFull}, number+1), "\x00")
}
