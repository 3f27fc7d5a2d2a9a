package checkpoint

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/safedir"
	"google.golang.org/protobuf/proto"
)

// These are the bounds and names of docs/formats/checkpoint.md.
const (
	checkpointMagic = "PCKP\x01\x00\x00\x00"
	maxHeader       = 64 << 10
	maxState        = 2 << 30
	// mostKept checkpoints of a stream serve its reader, and MostAhead are after it: an iterator is ahead of its
	// reader by the window.
	mostKept         = 2
	MostAhead        = 6
	checkpointSuffix = ".checkpoint"
	temporarySuffix  = ".tmp"
)

// Dir is the directory of checkpoints, which workers share. Nothing outside of it can be reached through it.
// Everything in it is verified before use.
type Dir struct{ root *os.Root }

// Open opens the directory of checkpoints. It refuses a directory that other users can write to.
func Open(dir string) (*Dir, error) {
	root, err := safedir.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; create it, or omit --checkpoint-dir", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open the directory of checkpoints: %w", err)
	}
	return &Dir{root}, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return d.root.Close() }

// StreamDir is the directory of a stream. Users choose the names of jobs, so they are hashed.
func StreamDir(cluster string, id *pecanv1.StreamId) string {
	sum := sha256.Sum256([]byte(cluster + "\x00" + id.GetJobId()))
	return path.Join(hex.EncodeToString(sum[:16]), fmt.Sprintf("%d-%d", id.GetEpoch(), id.GetStream()))
}

// File is the name of one checkpoint.
type File struct {
	Name         string
	Index, lease uint64
}

var savedName = regexp.MustCompile(`^(\d{1,20})-(\d{1,20})\.checkpoint$`)

// List returns a stream's checkpoints, the newest first.
func (d *Dir) List(place string) ([]File, error) {
	entries, err := fs.ReadDir(d.root.FS(), place)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []File
	for _, entry := range entries {
		m := savedName.FindStringSubmatch(entry.Name())
		if m == nil || !entry.Type().IsRegular() {
			continue
		}
		index, err1 := strconv.ParseUint(m[1], 10, 64)
		lease, err2 := strconv.ParseUint(m[2], 10, 64)
		if err1 == nil && err2 == nil {
			all = append(all, File{path.Join(place, entry.Name()), index, lease})
		}
	}
	slices.SortFunc(all, func(a, b File) int { return cmp.Or(cmp.Compare(b.Index, a.Index), cmp.Compare(b.lease, a.lease)) })
	return all, err
}

// Write writes a checkpoint atomically: after a crash of the process or the host it exists whole or not at all.
func (d *Dir) Write(place string, header *pecanv1.Checkpoint, state []byte) (err error) {
	if len(state) > maxState {
		return fmt.Errorf("the state has %d bytes, more than %d", len(state), maxState)
	}
	header.Size, header.Crc = uint64(len(state)), crc32.Checksum(state, frame.Castagnoli)
	raw, err := proto.Marshal(header)
	if err != nil {
		return err
	}
	head := binary.LittleEndian.AppendUint32([]byte(checkpointMagic), uint32(len(raw)))
	head = append(head, raw...)
	head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(head, frame.Castagnoli))
	if err := d.root.MkdirAll(place, 0o700); err != nil {
		return err
	}
	name := path.Join(place, fmt.Sprintf("%d-%d%s", header.GetIndex(), header.GetLease(), checkpointSuffix))
	return safedir.Write(d.root, name, path.Join(place, rand.Text()+temporarySuffix), head, state)
}

// Prune removes checkpoints that no run at any of the indices would use, and returns the others. The newest ones at or below
// each index stay. Checkpoints above all indices are needed later.
func (d *Dir) Prune(place string, indices ...uint64) (left []File, err error) {
	all, err := d.List(place)
	// kept counts, for each index, the checkpoints that serve it.
	kept := make([]int, len(indices))
	for _, each := range all {
		useful := each.Index > slices.Max(indices)
		for i, index := range indices {
			if each.Index <= index {
				kept[i]++
				useful = useful || kept[i] <= mostKept
			}
		}
		if useful {
			left = append(left, each)
		} else {
			err = errors.Join(err, safedir.Remove(d.root, each.Name))
		}
	}
	return left, err
}

// Remove removes the checkpoints of a stream that is over, and the job's directory with its last stream.
func (d *Dir) Remove(place string) error {
	err := d.root.RemoveAll(place)
	if other := d.root.Remove(path.Dir(place)); other != nil && !errors.Is(other, syscall.ENOTEMPTY) && !errors.Is(other, fs.ErrNotExist) {
		err = errors.Join(err, other)
	}
	return err
}

// Abandoned is the age after which untouched checkpoints belong to an abandoned job.
const Abandoned = 7 * 24 * time.Hour

var jobPlace = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Expire removes checkpoints that were last touched before a time.
func (d *Dir) Expire(before time.Time) error {
	jobs, err := fs.ReadDir(d.root.FS(), ".")
	for _, job := range jobs {
		if !jobPlace.MatchString(job.Name()) || !job.IsDir() {
			continue
		}
		streams, listed := fs.ReadDir(d.root.FS(), job.Name())
		err = errors.Join(err, listed)
		for _, stream := range streams {
			if info, gone := stream.Info(); gone == nil && info.ModTime().Before(before) {
				err = errors.Join(err, d.Remove(path.Join(job.Name(), stream.Name())))
			}
		}
	}
	return err
}

// ErrForeign is the error for a checkpoint of something else.
var ErrForeign = errors.New("it is a checkpoint of another stream, job or dataset")

// Read returns a checkpoint's header and state if it is whole and its origin equals want's.
func (d *Dir) Read(name string, want *pecanv1.Checkpoint) (*pecanv1.Checkpoint, []byte, error) {
	file, bytes, err := safedir.OpenFile(d.root, name)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	fixed := make([]byte, len(checkpointMagic)+4)
	if _, err := io.ReadFull(file, fixed); err != nil {
		return nil, nil, fmt.Errorf("it is truncated: %w", err)
	}
	length := int64(binary.LittleEndian.Uint32(fixed[len(checkpointMagic):]))
	if string(fixed[:len(checkpointMagic)]) != checkpointMagic || length > maxHeader {
		return nil, nil, errors.New("it is not a checkpoint of this version")
	}
	rest := make([]byte, length+4)
	if _, err := io.ReadFull(file, rest); err != nil {
		return nil, nil, fmt.Errorf("it is truncated: %w", err)
	}
	head := append(fixed, rest[:length]...)
	header := new(pecanv1.Checkpoint)
	if crc32.Checksum(head, frame.Castagnoli) != binary.LittleEndian.Uint32(rest[length:]) || proto.Unmarshal(rest[:length], header) != nil {
		return nil, nil, errors.New("its header is damaged")
	}
	if size := bytes - int64(len(head)) - 4; size < 0 || size > maxState || uint64(size) != header.GetSize() {
		return nil, nil, fmt.Errorf("its state has %d bytes, its header says %d", size, header.GetSize())
	}
	if !sameOrigin(header, want) {
		return nil, nil, ErrForeign
	}
	state := make([]byte, header.GetSize())
	if _, err := io.ReadFull(file, state); err != nil {
		return nil, nil, fmt.Errorf("it is truncated: %w", err)
	}
	if crc32.Checksum(state, frame.Castagnoli) != header.GetCrc() {
		return nil, nil, errors.New("its state is damaged")
	}
	return header, state, nil
}

// sameOrigin reports whether two checkpoints are of one stream with equal elements.
func sameOrigin(a, b *pecanv1.Checkpoint) bool {
	return a.GetFingerprint() == b.GetFingerprint() && a.GetPlanHash() == b.GetPlanHash() && a.GetMode() == b.GetMode() && a.GetSeed() == b.GetSeed() &&
		proto.Equal(a.GetId(), b.GetId()) && a.GetTensorflowVersion() == b.GetTensorflowVersion()
}
