package core_test

import (
	"fmt"
	"runtime"
	"testing"
)

// withCache is a script with a committed cache that no epoch uses.
func withCache(t *testing.T) *script {
	t.Helper()
	s := newScript(t)
	for _, line := range []string{
		"config cache_ttl=80s", "start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=8 caches",
		"job client=a request=r1 dataset=f1 streams=1 cache=k", "open client=a request=o1 job=j1",
		"written session=1 key=k part=0 of=1 name=c-k-0-1-w1.seg bytes=300 elements=50", "close client=a job=j1 epoch=0", "wait 300ms",
	} {
		s.run(line)
	}
	if s.core.State().Cache("k").GetManifest() == "" {
		t.Fatal("no cache is committed")
	}
	return s
}

// The time without use is recorded every 10 s. A dispatcher that restarts more often must not begin again each time.
func TestACacheExpiresAlthoughTheDispatcherRestartsOften(t *testing.T) {
	s := withCache(t)
	after := 0
	for ; s.core.State().Cache("k") != nil && after < 200; after += 5 {
		s.run("wait 5s")
		s.run("restart")
	}
	if after < 70 || after > 120 {
		t.Errorf("a cache with a TTL of 80 s is evicted after %d s", after)
	}
	s.checkReplay()
}

// What the clock of the host says is believed for one period only.
func TestATimeWithoutTheDispatcherCountsForOnePeriod(t *testing.T) {
	s := withCache(t)
	s.run("wait 15s")
	s.now += 1000 * 3600e9
	s.run("restart")
	s.run("wait 100ms")
	if unused := s.core.State().Cache("k").GetUnusedS(); unused < 10 || unused > 26 {
		t.Errorf("after 15 s and a pause the cache counts as unused for %v s", unused)
	}
}

// An epoch that uses a cache again is recorded at once.
func TestAUsedCacheIsUsedAlsoAfterARestart(t *testing.T) {
	s := withCache(t)
	s.run("wait 70s")
	for _, line := range []string{
		"hello session=2 worker=w2 slots=8 caches", "job client=b request=r1 dataset=f1 streams=1 cache=k", "open client=b request=o1 job=j2",
		"wait 100ms", "goodbye client=b", "restart", "wait 75s",
	} {
		s.run(line)
	}
	if s.core.State().Cache("k") == nil {
		t.Error("a cache that was used 75 s ago is evicted, with a TTL of 80 s")
	}
	s.run("wait 30s")
	if s.core.State().Cache("k") != nil {
		t.Error("the cache stays")
	}
}

// A worker may list its files as often as it likes. An answer does not cost more if caches have many segments.
func TestTheCostOfAListOfFilesDoesNotGrowWithTheCaches(t *testing.T) {
	const segments = 5000
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=8 caches", fmt.Sprintf("job client=a request=r1 dataset=f1 streams=%d cache=k", segments),
	} {
		s.run(line)
	}
	for n := range segments {
		s.run(fmt.Sprintf("written session=1 key=k part=%d of=%d name=c-k-%d-1-w1.seg bytes=300 elements=50", n, segments, n))
	}
	if n := len(s.core.State().Cache("k").GetSegments()); n != segments {
		t.Fatalf("%d segments are recorded", n)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	shown := s.run("files session=1 names=c-k-7-1-w1.seg,c-k-7-2-w1.seg")
	runtime.ReadMemStats(&after)
	if len(shown) != 1 || shown[0] != "session 1: orphans [c-k-7-2-w1.seg]" {
		t.Errorf("the worker hears %q", shown)
	}
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 100*segments/10 {
		t.Errorf("a list of two files takes %d bytes of memory", bytes)
	}
}
