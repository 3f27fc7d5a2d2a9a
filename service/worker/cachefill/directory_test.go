package cachefill

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
)

// deadMount is a directory that hangs when a file is removed, as network file systems may.
type deadMount struct{ until chan struct{} }

var errUnused = errors.New("not used here")

func (deadMount) Create(string) (cache.File, error)          { return nil, errUnused }
func (deadMount) Open(string) (cache.Readable, int64, error) { return nil, 0, errUnused }
func (deadMount) Rename(string, string) error                { return errUnused }
func (d deadMount) Remove(string) error                      { <-d.until; return nil }
func (deadMount) List() ([]cache.Info, error)                { return nil, errUnused }
func (deadMount) SyncDir() error                             { return errUnused }

func TestCommandsAreExecutedDuringTheRemovalOfCacheFiles(t *testing.T) {
	until, obeyed := make(chan struct{}), make(chan struct{})
	unneeded := cache.Name("c", "0", 0, 1, 1, "0")
	d := &Directory{
		dir: cache.New(deadMount{until}, 0), Log: slog.New(slog.DiscardHandler), Running: new(sync.WaitGroup), seen: map[string]time.Time{}, Cluster: func() string { return "c" },
		own: map[string]*ownSegment{unneeded: {segment: &pecanv1.CacheSegment{Name: unneeded}, acknowledged: make(chan struct{})}},
	}
	go func() {
		// The commands come one after the other, as in a session.
		orphans := []string{cache.Name("c", "0", 1, 1, 1, "0")}
		d.Acknowledge(&pecanv1.CacheSegmentAck{Name: unneeded})
		d.RemoveOrphans(orphans)
		d.RemoveOrphans(orphans)
		close(obeyed)
	}()
	select {
	case <-obeyed:
	case <-time.After(20 * time.Second):
		t.Error("no command is obeyed while the cache's file system does not answer")
	}
	close(until)
	<-obeyed
	d.Running.Wait()
}

// D13: TestTwoClustersInOneDirectoryLeaveEachOthersFilesAlone has a worker of each of two clusters. Each asks its dispatcher about its own files
// only, and refuses to remove those of the other.
func TestTwoClustersInOneDirectoryLeaveEachOthersFilesAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	names := map[string]string{}
	for _, cluster := range []string{"c-1", "c-2"} {
		names[cluster] = cache.Name(cluster, "key", 0, 1, 1, "w")
	}
	for cluster, name := range names {
		asked := make(chan []string, 2)
		d, err := Open(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		d.Log, d.Running, d.OrphanAfter, d.Cluster = slog.New(slog.DiscardHandler), new(sync.WaitGroup), 20*time.Millisecond, func() string { return cluster }
		d.Send = func(messages ...*pecanv1.WorkerMessage) {
			for _, message := range messages {
				select {
				case asked <- message.GetCacheFiles().GetNames():
				default:
				}
			}
		}
		for _, each := range names {
			writeFile(t, filepath.Join(path, each))
		}
		ctx, cancel := context.WithCancel(t.Context())
		d.Running.Go(func() { d.Collect(ctx) })
		for range 2 {
			if got := <-asked; !slices.Equal(got, []string{name}) {
				t.Errorf("the worker of cluster %s asks about %v, want %v", cluster, got, name)
			}
		}
		cancel()
		d.Running.Wait()
		// A dispatcher that names the files of another cluster is wrong, or of an earlier version.
		d.RemoveOrphans([]string{names["c-1"], names["c-2"]})
		d.Running.Wait()
		for owner, each := range names {
			if _, err := os.Stat(filepath.Join(path, each)); errors.Is(err, fs.ErrNotExist) != (owner == cluster) {
				t.Errorf("cluster %s removes its orphans: the file of cluster %s: %v", cluster, owner, err)
			}
		}
	}
}

func writeFile(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}
