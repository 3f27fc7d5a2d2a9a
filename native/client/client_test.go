package client

import (
	"testing"

	"github.com/pecan-ml/pecan/native/client/transport"
)

func TestReadsEveryElementOfEveryStream(t *testing.T) {
	for name, tc := range map[string]struct {
		stream  testStream
		change  []func(*testWorker)
		streams uint32
		workers int
		options IterOptions
		shared  bool
	}{
		"one stream, one element a frame":                {stream: testStream{count: 50}, streams: 1, workers: 1},
		"blocks of seven":                                {stream: testStream{count: 50, perFrame: 7}, streams: 1, workers: 1},
		"three streams on two workers":                   {stream: testStream{count: 40, perFrame: 3, pad: 100}, streams: 3, workers: 2},
		"strings in blocks":                              {stream: testStream{count: 30, perFrame: 4, text: true}, streams: 2, workers: 1},
		"an empty stream":                                {stream: testStream{}, streams: 2, workers: 1},
		"payloads of several reads":                      {stream: testStream{count: 6, pad: 5<<20 + 3}, streams: 1, workers: 1},
		"one such payload at a time":                     {stream: testStream{count: 4, pad: 9<<20 + 1}, streams: 1, workers: 1, options: IterOptions{MaxOutstandingBytes: 10}},
		"a budget smaller than an element":               {stream: testStream{count: 20, pad: 5000}, streams: 2, workers: 1, options: IterOptions{MaxOutstandingBytes: 10}},
		"compressed":                                     {stream: testStream{count: 30, perFrame: 4, pad: 300}, streams: 2, workers: 1, change: []func(*testWorker){func(w *testWorker) { w.snappy = true }}},
		"compressed and checksummed":                     {stream: testStream{count: 30, perFrame: 4, pad: 300}, streams: 2, workers: 1, change: []func(*testWorker){func(w *testWorker) { w.snappy, w.crc = true, true }}},
		"shared memory":                                  {stream: testStream{count: 50, perFrame: 3, pad: 3000}, streams: 2, workers: 1, change: []func(*testWorker){withUnix}, shared: true},
		"shared memory under a small budget":             {stream: testStream{count: 50, pad: 3000}, streams: 2, workers: 2, change: []func(*testWorker){withUnix}, shared: true, options: IterOptions{MaxOutstandingBytes: 6000}},
		"TCP on one host when it is asked for":           {stream: testStream{count: 50, perFrame: 3}, streams: 1, workers: 1, change: []func(*testWorker){withUnix}, options: IterOptions{Protocol: transport.TCP}},
		"shared memory asked for where it is to be had":  {stream: testStream{count: 50}, streams: 1, workers: 1, change: []func(*testWorker){withUnix}, options: IterOptions{Protocol: transport.SHM}, shared: true},
		"TCP when the worker's Unix socket is not there": {stream: testStream{count: 50}, streams: 1, workers: 1, change: []func(*testWorker){withUnix, func(w *testWorker) { _ = w.unix.Close() }}},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = int32(tc.streams) })
			var workers []*testWorker
			for range tc.workers {
				workers = append(workers, startWorker(t, same(tc.stream), tc.change...))
			}
			d.updateOf = spread(tc.streams, workers...)
			job := open(t, d)
			it := job.Open(tc.options)
			all, err := read(t, it)
			if err != nil {
				t.Fatal(err)
			}
			counts := make([]uint64, tc.streams)
			for i := range counts {
				counts[i] = tc.stream.count
			}
			wantAll(t, all, counts...)
			if tc.stream.count > 0 && (workers[0].slots.Load() > 0) != tc.shared {
				t.Errorf("%d slots of shared memory, want some: %v", workers[0].slots.Load(), tc.shared)
			}
			if _, status, _ := it.NextElement(0); status != End {
				t.Errorf("after the end: %v", status)
			}
			eventually(t, "every stream is reported finished", func() bool {
				return look(d, func() int { return len(d.finished) }) == int(tc.streams)
			})
			for _, f := range look(d, func() []finishedReport { return d.finished }) {
				if f.GetCount() != tc.stream.count || f.GetLease() != 1 {
					t.Errorf("finished: %v", f)
				}
			}
			if stats := it.Stats(); stats.Elements != uint64(len(all)) || stats.Duplicates != 0 {
				t.Errorf("stats: %+v", stats)
			}
		})
	}
}
