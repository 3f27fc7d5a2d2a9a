package dispatcher_test

import (
	"fmt"
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// What an operator changes survives the dispatcher, and a worker removes files only then.
func TestCachesArePinnedAndRemovedByTheirKeys(t *testing.T) {
	dir := t.TempDir()
	kept := openStore(t, dir)
	s := startService(t, serviceOptions{store: kept})
	hello := workerHello("w", 4)
	hello.Caches = true
	w := s.worker(hello)
	dataset := s.register(&pecanv1.Plan{NumStreams: 2, Cache: &pecanv1.CachePlan{Node: "take", Key: "key"}})
	job := s.job("c", "", dataset, nil)
	s.open("c", job.JobId, 0)
	var files []string
	for stream := range uint32(2) {
		w.start()
		name := fmt.Sprintf("%s-key-%d-1-1-w.seg", job.ClusterId, stream)
		files = append(files, name)
		w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentWritten{CacheSegmentWritten: &pecanv1.CacheSegmentWritten{
			Segment: &pecanv1.CacheSegment{Key: "key", Part: stream, Parts: 2, Name: name, Bytes: 100, Elements: 5},
		}}})
	}
	for range files {
		if ack := w.next().GetCacheSegmentAck(); !ack.GetAccepted() {
			t.Fatal("a segment is not recorded")
		}
	}
	one := func() *pecanv1.RecordedCache {
		t.Helper()
		answer, err := s.client.Caches(s.ctx(), &pecanv1.CachesRequest{Key: "key", Segments: true})
		if err != nil || len(answer.Caches) != 1 {
			t.Fatal(answer, err)
		}
		return answer.Caches[0]
	}
	change := func(to pecanv1.ChangeCacheRequest_Change) error {
		_, err := s.client.ChangeCache(s.ctx(), &pecanv1.ChangeCacheRequest{Key: "key", Change: to})
		return err
	}
	if c := one(); c.State != "committed" || !c.InUse || c.Pinned || c.Bytes != 200 || c.Segments != 2 || len(c.Files) != 2 || c.Tenant != "default" || !slices.Equal(c.Jobs, []string{job.JobId}) {
		t.Error(c)
	}
	// All caches may have millions of segments.
	_, err := s.client.Caches(s.ctx(), &pecanv1.CachesRequest{Segments: true})
	wantReason(t, err, reason.BadArgument)
	wantReason(t, change(pecanv1.ChangeCacheRequest_REMOVE), reason.BadArgument)
	wantReason(t, change(pecanv1.ChangeCacheRequest_CHANGE_UNSPECIFIED), reason.BadArgument)
	if err := change(pecanv1.ChangeCacheRequest_PIN); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}

	kept = openStore(t, dir)
	defer kept.Close()
	s = startService(t, serviceOptions{store: kept})
	if c := one(); !c.Pinned {
		t.Error("a restarted dispatcher forgets that a cache is pinned")
	}
	if _, err := s.client.CloseEpoch(s.ctx(), &pecanv1.CloseEpochRequest{ClientId: "c", JobId: job.JobId}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.ClientGoodbye(s.ctx(), &pecanv1.ClientGoodbyeRequest{ClientId: "c"}); err != nil {
		t.Fatal(err)
	}
	hello.ClusterId = job.ClusterId
	w = s.worker(hello)
	if err := change(pecanv1.ChangeCacheRequest_REMOVE); err != nil {
		t.Fatal(err)
	}
	for command := w.next(); ; command = w.next() {
		if orphans := command.GetCacheOrphans(); orphans != nil {
			if !slices.Equal(orphans.Names, files) {
				t.Errorf("the worker removes %v, want %v", orphans.Names, files)
			}
			break
		}
	}
	_, err = s.client.Caches(s.ctx(), &pecanv1.CachesRequest{Key: "key"})
	wantReason(t, err, reason.CacheUnknown)
	wantReason(t, change(pecanv1.ChangeCacheRequest_PIN), reason.CacheUnknown)
	s.stop()
}
