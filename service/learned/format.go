package learned

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// version is the version of the format.
const version = 1

// headerSize is the length of magic, version and checksum.
const headerSize = 12

var (
	magic      = []byte("PLRN")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

var (
	// errNewer is the error for a file of a later version.
	errNewer = errors.New("a later version of Pecan wrote it")
	// errDamaged is the error for bytes that are no complete file.
	errDamaged = errors.New("it is damaged")
)

// Format returns the content of a file.
func Format(l *pecanv1.Learned) ([]byte, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("write what was learned: %w", err)
	}
	header := binary.LittleEndian.AppendUint32(bytes.Clone(magic), version)
	return append(binary.LittleEndian.AppendUint32(header, crc32.Checksum(body, castagnoli)), body...), nil
}

// Parse reads the content of a file.
func Parse(data []byte) (*pecanv1.Learned, error) {
	if len(data) < headerSize || !bytes.HasPrefix(data, magic) {
		return nil, fmt.Errorf("%w: it does not begin with %s and a version", errDamaged, magic)
	}
	found, sum, body := binary.LittleEndian.Uint32(data[4:]), binary.LittleEndian.Uint32(data[8:]), data[headerSize:]
	if found > version {
		return nil, fmt.Errorf("%w, with format %d; this version reads format %d", errNewer, found, version)
	}
	if found == 0 || sum != crc32.Checksum(body, castagnoli) {
		return nil, fmt.Errorf("%w: its checksum is wrong", errDamaged)
	}
	l := &pecanv1.Learned{}
	if err := proto.Unmarshal(body, l); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return l, nil
}
