package extents

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// maxKept bounds the number of kept indexes of a user. Each has at most maxExtents offsets.
	maxKept = 256
	// settled is the age of a file from which each further change changes its modification time, also on coarse clocks.
	settled = 2 * time.Second
)

// directory is the directory of kept indexes, nil for the one that the environment names.
var directory atomic.Pointer[string]

// KeepIn sets the directory of kept indexes for this process.
func KeepIn(dir string) { directory.Store(&dir) }

// keptIn returns the directory of kept indexes, "" if there is none.
func keptIn() string {
	if dir := directory.Load(); dir != nil {
		return *dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "pecan", "extents")
}

// reading has the lists of extents that are being made.
var reading singleflight.Group

// indexOf returns the kept index of a range of a file. Without one, it reads the index and keeps it.
func indexOf(name string, used Range) (Index, error) {
	state, old := stateOf(name)
	place := placeOf(name, used)
	if x, ok := load(place, state); ok {
		return x, nil
	}
	x, err := ReadIndex(context.Background(), name, used, maxExtents)
	if err != nil {
		return Index{}, err
	}
	if now, _ := stateOf(name); old && now == state && len(x.Offsets) > 1 {
		keep(place, keptIndex{state, x})
	}
	return x, nil
}

// keptIndex is the content of the file of an index.
type keptIndex struct {
	State string `json:"file"`
	Index Index  `json:"index"`
}

// stateOf identifies the content of a file as far as its metadata can. settled is false if the file changed so shortly
// ago that a further change may give the same state.
func stateOf(name string) (state string, isSettled bool) {
	info, err := os.Stat(name)
	if err != nil {
		return "", false
	}
	there, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	state = fmt.Sprintf("%s %d %d %d %d", name, info.Size(), info.ModTime().UnixNano(), there.Dev, there.Ino)
	return state, time.Since(info.ModTime()) > settled
}

// placeOf returns the path at which the index of a range of a file is kept, "" if there is no directory for it.
func placeOf(name string, used Range) string {
	dir := keptIn()
	if !filepath.IsAbs(dir) || !filepath.IsAbs(name) {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%d %d %s", used.From, used.To, name))))
}

// load returns the kept index of a file in a state. Damaged indexes, and those of another state, do not count.
func load(place, state string) (Index, bool) {
	data, err := os.ReadFile(place)
	if err != nil || state == "" || len(data) < footerSize || binary.LittleEndian.Uint32(data) != crc32.Checksum(data[footerSize:], castagnoli) {
		return Index{}, false
	}
	var kept keptIndex
	if json.Unmarshal(data[footerSize:], &kept) != nil || kept.State != state || kept.Index.Every < 1 {
		return Index{}, false
	}
	return kept.Index, true
}

// keep writes an index, and drops the oldest ones above maxKept. An index that cannot be kept is read again.
func keep(place string, kept keptIndex) {
	text, err := json.Marshal(kept)
	if err != nil || place == "" || os.MkdirAll(filepath.Dir(place), 0o700) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(place), "new-")
	if err != nil {
		return
	}
	_, err = f.Write(append(binary.LittleEndian.AppendUint32(nil, crc32.Checksum(text, castagnoli)), text...))
	if closed := f.Close(); err != nil || closed != nil || os.Rename(f.Name(), place) != nil {
		_ = os.Remove(f.Name())
		return
	}
	entries, err := os.ReadDir(filepath.Dir(place))
	if err != nil || len(entries) <= maxKept {
		return
	}
	age := func(e fs.DirEntry) time.Time {
		info, err := e.Info()
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return age(a).Compare(age(b)) })
	for _, e := range entries[:len(entries)-maxKept] {
		_ = os.Remove(filepath.Join(filepath.Dir(place), e.Name()))
	}
}
