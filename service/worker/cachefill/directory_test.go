package cachefill

import (
	"errors"
	"log/slog"
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
	unneeded := cache.Name("0", 0, 1, 1, "0")
	d := &Directory{
		dir: cache.New(deadMount{until}, 0), Log: slog.New(slog.DiscardHandler), Running: new(sync.WaitGroup), seen: map[string]time.Time{},
		own: map[string]*ownSegment{unneeded: {segment: &pecanv1.CacheSegment{Name: unneeded}, acknowledged: make(chan struct{})}},
	}
	go func() {
		// The commands come one after the other, as in a session.
		orphans := []string{cache.Name("0", 1, 1, 1, "0")}
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
