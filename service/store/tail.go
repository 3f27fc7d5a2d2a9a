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

// Pebble's log is a row of blocks, and a record one or more chunks in them: a checksum (4 bytes), the length of the payload (2), the kind (1), the
// number of the log (4), in the newer form an offset that is on disk already (8), the payload. Chunks do not cross blocks; what is left
// of a block is zero.
const (
	logBlock    = 32 << 10
	sectorBytes = 512

	olderHeader, newerHeader = 11, 19
	// Kinds of chunks, in the older form and in the newer: the whole record, its first part, one in the middle, the last.
	olderFull, newerFull                      = 5, 9
	partFull, partFirst, partMiddle, partLast = 0, 1, 2, 3
)

// Tail is how the newest log of a store ends.
type Tail struct {
	// Log is the file's path, empty when there is none.
	Log string
	// End is where its last whole record ends, Size the length of the file.
	End, Size int64
	// Torn: bytes of a record that was cut off while it was written stand behind End. Nobody was told of it.
	Torn bool
	// Wrong says why what follows End is no torn write but damage of what may have been acknowledged; empty when it is not.
	Wrong string
}

// readTail looks at the newest log, and gives what follows its last whole record. Pebble takes everything that it cannot read there for the end of the log; a record that is all there
// with a wrong checksum was not torn, and may have been acknowledged.
func readTail(on vfs.FS, dir string) (Tail, []byte, error) {
	path, number, err := newestLog(on, dir)
	if err != nil || path == "" {
		return Tail{}, nil, err
	}
	file, err := on.Open(path)
	if err != nil {
		return Tail{}, nil, err
	}
	data, err := io.ReadAll(file)
	if err = joinClose(err, file); err != nil {
		return Tail{}, nil, err
	}
	end, wrong := scanLog(data, uint32(number))
	tail := Tail{Log: path, End: int64(end), Size: int64(len(data)), Wrong: wrong}
	rest := bytes.TrimRight(data[end:], "\x00")
	tail.Torn = wrong == "" && len(rest) > 0 && !bytes.Equal(rest, trailer(uint32(number)))
	return tail, rest, nil
}

func joinClose(err error, file io.Closer) error {
	if closing := file.Close(); err == nil {
		err = closing
	}
	return err
}

// newestLog gives the log with the greatest number.
func newestLog(on vfs.FS, dir string) (path string, newest uint64, err error) {
	names, err := on.List(dir)
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

// scanLog gives the end of the last whole record, and what is wrong behind it when that cannot be a torn write.
func scanLog(data []byte, number uint32) (end int, wrong string) {
	at, inside := 0, false
	for {
		left := min(logBlock-at%logBlock, len(data)-at)
		if left == 0 {
			return end, ""
		}
		if at%logBlock+newerHeader > logBlock && allZero(data[at:at+left]) {
			// No chunk fits into the rest of the block.
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
			return end, fmt.Sprintf("the record at offset %d is all there and its checksum is wrong", end)
		case inside != (c.part == partMiddle || c.part == partLast):
			return end, fmt.Sprintf("at offset %d a part of a record stands where none can be", at)
		}
		at += c.header + len(c.payload)
		if inside = c.part == partFirst || c.part == partMiddle; !inside {
			end = at
		}
	}
}

// logChunk is a piece of a record as it lies in a log.
type logChunk struct {
	part, header int
	payload      []byte
	// whole: all of it is in the file; valid: its checksum is right.
	whole, valid bool
}

// parseChunk reads the chunk at the start of a block's rest; false when it is none of this log's.
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

// maskedSum is pebble's checksum of a chunk.
func maskedSum(data []byte) uint32 {
	sum := crc32.Checksum(data, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

// hasZeroSector tells whether the disk never got a part of the chunk that begins at the offset at: a sector of it is zero.
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

// trailer is what pebble writes at the end of a log that it closes, without the zeros behind it: an empty chunk of the log that would follow.
func trailer(number uint32) []byte {
	return bytes.TrimRight(binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0, 0, 0, olderFull}, number+1), "\x00")
}
