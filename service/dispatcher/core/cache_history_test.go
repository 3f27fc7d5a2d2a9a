package core_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// readersOf returns the ids of the jobs that could read a cache.
func readersOf(s *durable.State, key, fingerprint string) (ids []string) {
	for _, past := range s.Readers(key, fingerprint, "") {
		ids = append(ids, past.JobId)
	}
	slices.Sort(ids)
	return ids
}

// Jobs in older journals have no keys. They count for their graph.
func TestJobsWithoutKeysCountForTheirGraph(t *testing.T) {
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "dataset fingerprint=f2", "hello session=1 worker=w1 slots=4 caches",
		"job client=a request=r1 dataset=f1 streams=1 candidates=decoded,one", "open client=a request=o1 job=j1",
		"job client=b request=r1 dataset=f2 streams=1 candidates=decoded,two", "open client=b request=o1 job=j2",
	} {
		s.run(line)
	}
	older := durable.NewState()
	for _, record := range s.records {
		record := proto.CloneOf(record)
		if joined := record.GetEpochJoined(); joined != nil {
			joined.CacheKeys, joined.KeysKnown = nil, false
		}
		apply(t, older, record)
	}
	for _, c := range []struct {
		key, fingerprint string
		now, before      []string
	}{
		{"decoded", "f1", []string{"j1", "j2"}, []string{"j1"}}, {"decoded", "f3", []string{"j1", "j2"}, nil}, {"two", "f1", []string{"j2"}, []string{"j1"}}, {"m", "f1", nil, []string{"j1"}},
	} {
		if got := readersOf(s.core.State(), c.key, c.fingerprint); !slices.Equal(got, c.now) {
			t.Errorf("%v could read cache %s of graph %s, want %v", got, c.key, c.fingerprint, c.now)
		}
		if got := readersOf(older, c.key, c.fingerprint); !slices.Equal(got, c.before) {
			t.Errorf("in an older journal, %v could read cache %s of graph %s, want %v", got, c.key, c.fingerprint, c.before)
		}
	}
}

// Tenants know nothing of each other's jobs unless they share caches.
func TestTheHistoryOfOtherTenantsCountsIfCachesAreShared(t *testing.T) {
	for config, want := range map[string]int{"config": 0, "config cache_shared": 2} {
		s := newScript(t)
		for _, line := range []string{
			config, "start cluster=c", "dataset fingerprint=f1", "dataset fingerprint=f2", "hello session=1 worker=w1 slots=4 caches",
			"job client=a request=r1 dataset=f1 streams=1 candidates=decoded tenant=red", "open client=a request=o1 job=j1", "goodbye client=a",
			"job client=b request=r1 dataset=f2 streams=1 candidates=decoded,b", "open client=b request=o1 job=j2",
			"job client=d request=r1 dataset=f1 streams=1 candidates=decoded tenant=blue", "open client=d request=o1 job=j3",
			"metrics session=1 job=j3 nodes=Map:400:5",
		} {
			s.run(line)
		}
		asked := s.core.CacheToDecide(&pecanv1.OpenEpochRequest{JobId: "j3", ClientId: "d"})
		if asked == nil || len(asked.Facts.Steps) != 1 || len(asked.Facts.Steps[0].Past) != want {
			t.Errorf("%s: the decision is made from %+v, want %d jobs that could read the cache", config, asked, want)
		}
	}
}

// A job that can read no cache is no reader. Its epochs still say how long jobs of its graph run.
func TestJobsThatCanReadNoCacheAreNoReaders(t *testing.T) {
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=4 caches",
		"job client=a request=r1 dataset=f1 streams=1 cached=off", "open client=a request=o1 job=j1 ahead", "adopt client=a job=j1 epoch=0",
		"job client=b request=r1 dataset=f1 streams=1 cached=off", "open client=b request=o1 job=j2",
		"job client=d request=r1 dataset=f1 streams=1 candidates=decoded", "open client=d request=o1 job=j3",
	} {
		s.run(line)
	}
	s.checkReplay()
	if got := readersOf(s.core.State(), "decoded", "f1"); !slices.Equal(got, []string{"j3"}) {
		t.Errorf("%v could read the cache, and only j3 could", got)
	}
	if past := s.core.State().PastJobs(s.core.State().Job("j3")); len(past) != 2 {
		t.Errorf("%v ran before, and j1 and j2 did", past)
	}
	// The next epoch of a job repeats nothing.
	s.run("open client=b request=o2 job=j2 pass=1")
	for i, record := range s.records {
		if joined := record.GetEpochJoined(); joined.GetEpoch() == 1 && joined.GetKeysKnown() {
			t.Errorf("record %d repeats that %s can read no cache", i, joined.JobId)
		}
	}
	// The record of an earlier version may be the first one of the job.
	older := durable.NewState()
	for _, record := range s.records {
		record := proto.CloneOf(record)
		if joined := record.GetEpochJoined(); joined != nil && joined.JobId == "j2" {
			joined.KeysKnown = joined.Epoch == 1
		}
		if before := len(readersOf(older, "decoded", "f1")); record.GetEpochJoined().GetEpoch() == 1 && before != 2 {
			t.Errorf("before its second epoch, %d jobs count, want j2 and j3", before)
		}
		apply(t, older, record)
	}
	if got := readersOf(older, "decoded", "f1"); !slices.Equal(got, []string{"j3"}) {
		t.Errorf("after a record of this version, %v could read the cache, and only j3 could", got)
	}
}

// Jobs of other graphs do not displace those of the job's own graph.
func TestTheHistoryOfTheGraphCountsFirst(t *testing.T) {
	state, key := durable.NewState(), []string{"k"}
	add := func(fingerprint string, epochs uint64, first, n int) {
		history := &pecanv1.StoredHistory{Fingerprint: fingerprint}
		for id := first; id < first+n; id++ {
			at := int64(1000 + id)
			history.Jobs = append(history.Jobs, &pecanv1.PastJob{JobId: fmt.Sprint("j", id), Epochs: epochs, NextEpoch: epochs, FirstS: at, LastS: at, CacheKeys: key, KeysKnown: true})
		}
		apply(t, state, mergeRecord(&pecanv1.Learned{Histories: []*pecanv1.StoredHistory{history}}))
	}
	add("own", 100, 0, 10)
	add("other", 1, 10, pecanv1.MaxPastJobs)
	sum := func(fingerprint, but string) (jobs int, epochs uint64) {
		past := state.Readers("k", fingerprint, but)
		for _, job := range past {
			epochs += job.Epochs
		}
		return len(past), epochs
	}
	for _, c := range []struct {
		fingerprint, but string
		jobs             int
		epochs           uint64
	}{{"own", "", 16, 1006}, {"own", "j3", 16, 907}, {"other", "", 16, 16}, {"other", "j12", 16, 115}, {"new", "", 16, 16}} {
		if jobs, epochs := sum(c.fingerprint, c.but); jobs != c.jobs || epochs != c.epochs {
			t.Errorf("graph %s: %d jobs with %d epochs count beside %q, want %d with %d", c.fingerprint, jobs, epochs, c.but, c.jobs, c.epochs)
		}
	}
}

// Of many jobs that could read a cache, the newest ones count. What is forgotten counts no more.
func TestTheNewestReadersOfACacheCount(t *testing.T) {
	const graphs = 10_010
	state := durable.NewState()
	for n := range graphs {
		at := int64(1000 + n)
		apply(t, state, mergeRecord(&pecanv1.Learned{Histories: []*pecanv1.StoredHistory{{Fingerprint: fmt.Sprint("f", n), Jobs: []*pecanv1.PastJob{
			{JobId: fmt.Sprint("j", n), Epochs: 1, NextEpoch: 1, FirstS: at, LastS: at, CacheKeys: []string{"0000000000000000", fmt.Sprintf("1-%d", n)}},
		}}}}))
	}
	data, err := state.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	restored, err := durable.Restore(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*durable.State{state, restored} {
		newest := s.Readers("00000000000000001", "f1", fmt.Sprint("j", graphs-1))
		if len(newest) != pecanv1.MaxPastJobs || newest[0].JobId != fmt.Sprint("j", graphs-2) || newest[15].JobId != fmt.Sprint("j", graphs-17) {
			t.Errorf("of %d jobs, %v count", graphs, newest)
		}
		if oldest := s.Readers("1-0", "", ""); oldest != nil {
			t.Errorf("%v of a graph that was forgotten counts", oldest)
		}
		if known := s.Readers("1-500", "", ""); len(known) != 1 {
			t.Errorf("%v could read a cache of one job", known)
		}
	}
}

// A merge and a restart take jobs by their graphs, in the order of time or in reverse. Each iteration has 32,000 jobs with the same
// 13 keys.
func BenchmarkIndexOfReaders(b *testing.B) {
	const graphs = 2000
	keys := strings.Split("abcdefghijklm", "")
	learned := func(at func(n int) int) *pecanv1.Learned {
		l := &pecanv1.Learned{}
		for n := range graphs {
			history := &pecanv1.StoredHistory{Fingerprint: fmt.Sprintf("f%05d", n)}
			for id := range pecanv1.MaxPastJobs {
				began := int64(100*at(n) + id)
				history.Jobs = append(history.Jobs, &pecanv1.PastJob{JobId: fmt.Sprintf("j%d-%d", n, id), Epochs: 1, NextEpoch: 1, FirstS: began, LastS: began, CacheKeys: keys, KeysKnown: true})
			}
			l.Histories = append(l.Histories, history)
		}
		return l
	}
	for order, l := range map[string]*pecanv1.Learned{
		"ascending": learned(func(n int) int { return 1 + n }), "descending": learned(func(n int) int { return graphs - n }),
	} {
		b.Run("merge-"+order, func(b *testing.B) {
			for b.Loop() {
				state := durable.NewState()
				for _, of := range l.ByGraph() {
					if err := state.Apply(mergeRecord(of)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		b.Run("restart-"+order, func(b *testing.B) {
			data, err := proto.Marshal(&pecanv1.Snapshot{Histories: l.Histories})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := durable.Restore(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
