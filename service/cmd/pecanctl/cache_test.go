package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
)

// cacheFiles makes a directory with a file of 100 bytes for each name.
func cacheFiles(t *testing.T, names ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cache")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(path, name), make([]byte, 100), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func namesIn(t *testing.T, path string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// The fixed dispatcher serves cluster c-1.
func TestOnlyTheFilesOfAClusterThatIsGoneAreRemoved(t *testing.T) {
	gone := []string{cache.Name("c-2", "key", 0, 1, 1, "w"), strings.Replace(cache.Name("c-2", "key", 1, 1, 1, "w"), ".seg", ".tmp", 1)}
	others := []string{cache.Name("c-1", "key", 0, 1, 1, "w"), cache.Name("c-20", "key", 0, 1, 1, "w"), "c-2", "notes.txt"}
	path := cacheFiles(t, append(others, gone...)...)
	o := &options{dispatcher: serve(t), timeout: 10 * time.Second}
	for cluster, want := range map[string]string{
		"":    "--cluster is missing: " + path + " has files of c-1 (1 files, 100 B), c-2 (2 files, 200 B), c-20 (1 files, 100 B)",
		"c-3": "no files of cluster c-3, but of c-1",
		"c-1": "cluster c-1 is not gone",
	} {
		o.cluster = cluster
		if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("cluster %q: %v, want %s", cluster, err, want)
		}
	}
	if got := namesIn(t, path); len(got) != 6 {
		t.Fatalf("a refused command leaves %v", got)
	}
	var out bytes.Buffer
	o.cluster = "c-2"
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &out); err != nil || out.String() != "removed 2 files (200 B) of cluster c-2\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	left := strings.Join(namesIn(t, path), " ")
	for _, name := range others {
		if !strings.Contains(left+" ", name+" ") {
			t.Errorf("%s is gone; left are %s", name, left)
		}
	}
	for _, name := range gone {
		if strings.Contains(left, name) {
			t.Errorf("%s is left", name)
		}
	}
}

func TestFilesOfAnotherUserStay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to another user")
	}
	own, foreign := cache.Name("c-2", "key", 0, 1, 1, "w"), cache.Name("c-2", "key", 1, 1, 1, "w")
	path := cacheFiles(t, own, foreign)
	if err := os.Chown(filepath.Join(path, foreign), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	o := &options{dispatcher: serve(t), timeout: 10 * time.Second, cluster: "c-2"}
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "1 files belong to another user and stay") {
		t.Error(err)
	}
	if got := namesIn(t, path); !slices.Equal(got, []string{foreign}) {
		t.Errorf("the directory has %v", got)
	}
}

// Versions before names had the cluster have left files that count against --cache-bytes.
func TestFilesWithOldNamesAreNamedAndRemoved(t *testing.T) {
	old := []string{"key-0-1-1-w.seg", "key-1-1-2-w.tmp", "key-2-1-3-w.bad"}
	others := []string{cache.Name("c-1", "key", 0, 1, 1, "w"), cache.Name("c1", "key", 0, 1, 1, "w"), "key-0-1-w.seg", "notes.txt"}
	path := cacheFiles(t, append(others, old...)...)
	o := &options{dispatcher: "127.0.0.1:1", timeout: time.Second}
	want := "--cluster or --old-names is missing: " + path + " has files of c-1 (1 files, 100 B), c1 (1 files, 100 B), and 3 files (300 B) of versions whose names have no cluster"
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	o.oldNames, o.cluster = true, "c-1"
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "not both") {
		t.Error(err)
	}
	o.cluster = ""
	if err := run(t.Context(), o, []string{"cache", "rm", path + "2"}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	if got := namesIn(t, path); len(got) != 7 {
		t.Fatalf("refused commands leave %v", got)
	}
	for _, want := range []string{"removed 3 files (300 B) with old names\n", "removed 0 files (0 B) with old names\n"} {
		var out bytes.Buffer
		if err := run(t.Context(), o, []string{"cache", "rm", path}, &out); err != nil || out.String() != want {
			t.Errorf("%q, %v, want %q", out.String(), err, want)
		}
	}
	if got := namesIn(t, path); len(got) != 4 || slices.Contains(got, "key-0-1-1-w.seg") {
		t.Errorf("%v are left", got)
	}
}

// A mistyped directory is no key.
func TestAMistypedDirectoryIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mistyped")
	o := &options{dispatcher: serve(t), timeout: 10 * time.Second}
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Error(err)
	}
}

// Without a dispatcher that answers, the operator must insist.
func TestADirectoryOfCachesIsNotMadeByItsCleaning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mistyped")
	o := &options{dispatcher: "127.0.0.1:1", timeout: time.Second, cluster: "c-2"}
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the directory was made: %v", err)
	}
	path = cacheFiles(t, cache.Name("c-2", "key", 0, 1, 1, "w"))
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "cannot ask whether cluster c-2 is gone") || len(namesIn(t, path)) != 1 {
		t.Error(namesIn(t, path), err)
	}
	o.force = true
	if err := run(t.Context(), o, []string{"cache", "rm", path}, &bytes.Buffer{}); err != nil || len(namesIn(t, path)) != 0 {
		t.Error(namesIn(t, path), err)
	}
}

// withCaches is a dispatcher with two caches. changes has what it was asked to change.
type withCaches struct {
	fixed
	segments []*pecanv1.CacheSegment
	changes  []string
}

func (w *withCaches) Caches(_ context.Context, r *pecanv1.CachesRequest) (*pecanv1.CachesResponse, error) {
	answer := &pecanv1.CachesResponse{ClusterId: "c-1", Quota: 4 << 20}
	for _, c := range []*pecanv1.RecordedCache{
		{Key: "key1", Tenant: "red", State: "committed", Pinned: true, Segments: 2, Streams: 2, Bytes: 3 << 20, SavesS: 75, UnusedS: 7200, Jobs: []string{"train", "j-7"}},
		{Key: "key2", State: "filling", InUse: true, Segments: 1, Streams: 4, Bytes: 1 << 10},
	} {
		for _, s := range w.segments {
			if r.Segments && s.Key == c.Key {
				c.Files = append(c.Files, s)
			}
		}
		if r.Key == "" || r.Key == c.Key {
			answer.Caches = append(answer.Caches, c)
		}
	}
	return answer, nil
}

func (w *withCaches) ChangeCache(_ context.Context, r *pecanv1.ChangeCacheRequest) (*pecanv1.ChangeCacheResponse, error) {
	if r.Key == "key3" {
		return nil, status.Error(codes.NotFound, "no cache key3 is recorded")
	}
	w.changes = append(w.changes, fmt.Sprintf("%v %s", r.Change, r.Key))
	return &pecanv1.ChangeCacheResponse{}, nil
}

func TestCachesAreListedAndChanged(t *testing.T) {
	dispatcher := &withCaches{}
	address, _ := serveThe(t, dispatcher)
	o := &options{dispatcher: address, timeout: 10 * time.Second}
	var out bytes.Buffer
	if err := run(t.Context(), o, []string{"cache", "list"}, &out); err != nil {
		t.Fatal(err)
	}
	const want = `CACHE  TENANT  STATE              SEGMENTS  SIZE     SAVES  UNUSED  JOBS
key1   red     committed, pinned  2/2       3.0 MiB  1m15s  2h0m0s  train, j-7
key2   -       filling            1/4       1.0 KiB  -      in use  -
2 caches, 3.0 MiB, quota 4.0 MiB
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	for _, command := range []string{"pin", "unpin", "rm"} {
		if err := run(t.Context(), o, []string{"cache", command, "key1"}, &out); err != nil {
			t.Error(err)
		}
	}
	if got := fmt.Sprint(dispatcher.changes); got != "[PIN key1 UNPIN key1 REMOVE key1]" {
		t.Error(got)
	}
	for want, args := range map[string][]string{
		"no cache key3 is recorded":          {"pin", "key3"},
		`want cache list, cache verify DIR`:  {"list", "all"},
		`got "cache"`:                        nil,
		"directory of caches: stat /nowhere": {"verify", "/nowhere"},
		`got "cache drop key1" (see --help)`: {"drop", "key1"},
		"--cluster is missing":               {"rm", t.TempDir()},
	} {
		if err := run(t.Context(), o, append([]string{"cache"}, args...), &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
}

func TestVerifyFindsDamagedSegments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	dir, err := cache.OpenDir(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	dispatcher := &withCaches{}
	for stream := range uint32(3) {
		w, err := dir.Create(t.Context(), cache.Name("c-1", "key1", stream, 1, 1, "w"), cache.ID{Key: "key1", Part: stream, Parts: 3, Source: "digest"}, nil, cache.Uncompressed)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Append(&cache.Chunk{Count: 7, Payload: [][]byte{make([]byte, 3<<20)}}); err != nil {
			t.Fatal(err)
		}
		s, err := w.Commit()
		if err != nil {
			t.Fatal(err)
		}
		dispatcher.segments = append(dispatcher.segments, &pecanv1.CacheSegment{
			Key: s.Key, Part: s.Part, Parts: s.Parts, Name: s.Name, Bytes: s.Bytes, Checksum: s.Checksum, Elements: s.Elements, Source: s.Source,
		})
	}
	address, _ := serveThe(t, dispatcher)
	o := &options{dispatcher: address, timeout: 10 * time.Second}
	var out bytes.Buffer
	if err := run(t.Context(), o, []string{"cache", "verify", path}, &out); err != nil || out.String() != "2 caches with 3 segments (9.0 MiB) are intact\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	data, err := os.ReadFile(filepath.Join(path, dispatcher.segments[1].Name))
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(filepath.Join(path, dispatcher.segments[1].Name), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(path, dispatcher.segments[2].Name)); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	err = run(t.Context(), o, []string{"cache", "verify", path}, &out)
	if err == nil || !strings.Contains(err.Error(), "2 of 3 segments") {
		t.Error(err)
	}
	for _, want := range []string{"cache key1, part 1: the segment cannot be used: ", "is damaged", "cache key1, part 2: the segment cannot be used: ", "no such file"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, out.String())
		}
	}
}
