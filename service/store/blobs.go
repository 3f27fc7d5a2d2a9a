package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2"
)

// header describes a value that is stored in chunks.
type header struct {
	// records is the number of records that a snapshot replaces; 0 for graphs.
	records uint64
	bytes   uint64
	chunks  uint32
	crc     uint32
}

const headerBytes = 24

func makeHeader(data []byte) header {
	return header{
		bytes: uint64(len(data)), crc: crc32.Checksum(data, castagnoli),
		chunks: uint32((len(data) + chunkBytes - 1) / chunkBytes),
	}
}

func (h header) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, h.records)
	b = binary.LittleEndian.AppendUint64(b, h.bytes)
	b = binary.LittleEndian.AppendUint32(b, h.chunks)
	return binary.LittleEndian.AppendUint32(b, h.crc)
}

func chunk(data []byte, i int) []byte {
	return data[i*chunkBytes : min((i+1)*chunkBytes, len(data))]
}

func chunkKey(prefix []byte, i int) []byte {
	key := append(append([]byte(nil), prefix...), '/')
	return binary.BigEndian.AppendUint32(key, uint32(i))
}

func (s *Store) get(key []byte) ([]byte, bool, error) {
	value, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, explainOpen(s.dir, err)
	}
	value = append([]byte(nil), value...)
	return value, true, closer.Close()
}

func (s *Store) readHeader(key []byte) (header, bool, error) {
	value, found, err := s.get(key)
	if err != nil || !found {
		return header{}, false, err
	}
	if len(value) != headerBytes {
		return header{}, false, faultf(ErrDamaged, nil, "read store %s: header %.80q has %d bytes instead of %d", s.dir, key, len(value), headerBytes)
	}
	return header{
		records: binary.LittleEndian.Uint64(value), bytes: binary.LittleEndian.Uint64(value[8:]),
		chunks: binary.LittleEndian.Uint32(value[16:]), crc: binary.LittleEndian.Uint32(value[20:]),
	}, true, nil
}

func (s *Store) readChunks(key []byte, h header) ([]byte, error) {
	if h.bytes > uint64(h.chunks)*chunkBytes {
		return nil, faultf(ErrDamaged, nil, "read store %s: header %.80q has more bytes than its %d chunks hold", s.dir, key, h.chunks)
	}
	var data []byte
	for i := range int(h.chunks) {
		part, found, err := s.get(chunkKey(key, i))
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, faultf(ErrDamaged, nil, "read store %s: chunk %d of %.80q is missing", s.dir, i, key)
		}
		data = append(data, part...)
	}
	if uint64(len(data)) != h.bytes || crc32.Checksum(data, castagnoli) != h.crc {
		return nil, faultf(ErrDamaged, nil, "read store %s: the checksum of %.80q is wrong", s.dir, key)
	}
	return data, nil
}

func graphKey(fingerprint string) []byte { return []byte("graph/" + fingerprint) }

// PutGraph stores a graph under its fingerprint. Storing it again changes nothing.
func (s *Store) PutGraph(fingerprint string, graph []byte) error {
	key := graphKey(fingerprint)
	if _, found, err := s.readHeader(key); err != nil || found {
		return err
	}
	if err := checkFreeSpace(s.fs, s.dir, s.dir, s.reserve); err != nil {
		return err
	}
	if err := s.guard(s.mark.check); err != nil {
		return err
	}
	h := makeHeader(graph)
	for i := range int(h.chunks) {
		// No sync per chunk: the sync of the header makes everything written before it durable too.
		if err := s.guard(func() error { return s.db.Set(chunkKey(key, i), chunk(graph, i), pebble.NoSync) }); err != nil {
			return err
		}
	}
	return s.guard(func() error {
		if err := s.db.Set(key, h.encode(), pebble.Sync); err != nil {
			return err
		}
		return s.mark.check()
	})
}

// Graph returns a stored graph, or ErrNoGraph.
func (s *Store) Graph(fingerprint string) ([]byte, error) {
	key := graphKey(fingerprint)
	h, found, err := s.readHeader(key)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("%w: %s", ErrNoGraph, fingerprint)
	}
	return s.readChunks(key, h)
}

// Graphs returns the fingerprints of all graphs, including incomplete graphs that a crash left.
func (s *Store) Graphs() (fingerprints []string, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte("graph/"), UpperBound: []byte("graph0")})
	if err != nil {
		return nil, explainOpen(s.dir, err)
	}
	for ok := it.First(); ok; {
		name, _, _ := bytes.Cut(bytes.TrimPrefix(it.Key(), []byte("graph/")), []byte("/"))
		fingerprints = append(fingerprints, string(name))
		// Skip the chunks of this graph.
		ok = it.SeekGE(append(graphKey(string(name)), '0'))
	}
	if err := it.Close(); err != nil {
		return nil, explainOpen(s.dir, err)
	}
	return fingerprints, nil
}

// DeleteGraph deletes a graph. Deleting an unknown graph is not an error.
func (s *Store) DeleteGraph(fingerprint string) error {
	key := graphKey(fingerprint)
	batch := s.db.NewBatch()
	err := batch.Delete(key, nil)
	if err == nil {
		err = batch.DeleteRange(append(append([]byte(nil), key...), '/'), append(append([]byte(nil), key...), '0'), nil)
	}
	if err != nil {
		return fmt.Errorf("delete graph from store %s: %w", s.dir, err)
	}
	return s.guard(func() error { return batch.Commit(pebble.NoSync) })
}
