package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client"
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// visit is one element as a trainer received it.
type visit struct {
	trainer int
	epoch   uint64
	stream  uint32
	index   uint64
	ids     []int64
}

type streamOf struct {
	trainer int
	stream  pecanv1.StreamKey
}

// ledger records what really happened: every element that a trainer took, and every stream that it requested from
// a worker.
type ledger struct {
	t      *testing.T
	mu     sync.Mutex
	visits []visit
	// leases has the newest lease under which each trainer requested each stream.
	leases map[streamOf]uint64
	// moves counts how often each trainer requested a stream under a newer lease.
	moves      map[int]int
	duplicates uint64
	// twice is the number of element frames that may still come twice. stale is the number of frames that may
	// still be followed by a false next element under an older lease. Both are set before reading starts.
	twice, stale atomic.Int64
	// taken counts the visits.
	taken atomic.Int64
}

func newLedger(t *testing.T) *ledger {
	return &ledger{t: t, leases: map[streamOf]uint64{}, moves: map[int]int{}}
}

// took records an element after checking its values.
func (l *ledger) took(tr *trainer, rows *element.Elements) {
	ids := make([]int64, len(rows.Tensors[0].Data)/8)
	for i := range ids {
		ids[i] = int64(binary.LittleEndian.Uint64(rows.Tensors[0].Data[i*8:]))
	}
	if err := tr.wanted.dataset.check(ids, &rows.Tensors[1]); err != nil {
		l.t.Errorf("element %d of stream %d, epoch %d: %v", rows.Index, rows.Stream, rows.Epoch, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken.Add(1)
	l.visits = append(l.visits, visit{tr.n, rows.Epoch, rows.Stream, rows.Index, ids})
}

// forget excludes a trainer's elements from the audit.
func (l *ledger) forget(tr *trainer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.visits = slices.DeleteFunc(l.visits, func(v visit) bool { return v.trainer == tr.n })
}

// moved counts how often a trainer found a stream under a newer lease.
func (l *ledger) moved(tr *trainer) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moves[tr.n]
}

// ended adds a trainer's counters of an epoch.
func (l *ledger) ended(stats client.Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.duplicates += stats.Duplicates
}

// dropped counts duplicate elements, as trainers report them at the end of each epoch.
func (l *ledger) dropped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.duplicates
}

// last returns the ids of the newest epoch.
func (l *ledger) last() (ids []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := uint64(0)
	for _, v := range l.visits {
		newest = max(newest, v.epoch)
	}
	for _, v := range l.visits {
		if v.epoch == newest {
			ids = append(ids, v.ids...)
		}
	}
	return ids
}

// promise has the guarantees of an epoch.
type promise int

const (
	exactly promise = iota
	atLeast
	atMost
	inOrder
)

func promiseOf(mode pecanv1.Mode) promise {
	switch mode {
	case pecanv1.Mode_MODE_DETERMINISTIC:
		return inOrder
	case pecanv1.Mode_MODE_AT_LEAST_ONCE:
		return atLeast
	case pecanv1.Mode_MODE_AT_MOST_ONCE:
		return atMost
	}
	return exactly
}

// audit compares every epoch with the dataset, and each trainer's streams with the order of their indexes.
func (l *ledger) audit(d *dataset, promised promise, epochs int) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	byEpoch := map[uint64][]int64{}
	next := map[streamOf]uint64{}
	for _, v := range l.visits {
		byEpoch[v.epoch] = append(byEpoch[v.epoch], v.ids...)
		key := streamOf{v.trainer, pecanv1.StreamKey{Epoch: v.epoch, Stream: v.stream}}
		if at, seen := next[key]; seen && v.index != at && promised == inOrder || seen && v.index < at && promised != atLeast {
			l.t.Errorf("trainer %d took element %d of stream %d, epoch %d, where %d was next", v.trainer, v.index, v.stream, v.epoch, at)
		}
		next[key] = v.index + 1
	}
	if len(byEpoch) != epochs && (promised != atMost || len(byEpoch) > epochs) {
		l.t.Errorf("elements of %d epochs came, %d were read", len(byEpoch), epochs)
	}
	for epoch, got := range byEpoch {
		if promised == inOrder {
			if want := d.order(l.t, epoch); !slices.Equal(got, want) {
				l.t.Errorf("epoch %d of %s in another order:\n%v\nwant\n%v", epoch, d.name, got, want)
			}
			continue
		}
		if err := compare(got, d.ids(), promised); err != nil {
			l.t.Errorf("epoch %d of %s: %v", epoch, d.name, err)
			l.logVisits(epoch)
		}
	}
}

// logVisits logs who took which elements of an epoch, in order of arrival.
func (l *ledger) logVisits(epoch uint64) {
	l.t.Helper()
	runs := map[uint32][]string{}
	var first, last visit
	end := func() {
		if last.ids != nil {
			runs[last.stream] = append(runs[last.stream], fmt.Sprintf("trainer %d had %d to %d", last.trainer, first.index, last.index))
		}
	}
	byStream := slices.Clone(l.visits)
	slices.SortStableFunc(byStream, func(a, b visit) int { return int(a.stream) - int(b.stream) })
	for _, v := range byStream {
		if v.epoch != epoch {
			continue
		}
		if last.ids == nil || v.stream != last.stream || v.trainer != last.trainer || v.index != last.index+1 {
			end()
			first = v
		}
		last = v
	}
	end()
	for _, stream := range slices.Sorted(maps.Keys(runs)) {
		l.t.Logf("stream %d: %s", stream, strings.Join(runs[stream], ", "))
	}
}

// lossesAreCounted compares the losses that the dispatcher reports in mode at-most-once with the missing
// elements, and returns their number. No trainer may have been killed, because killed trainers had some of the
// missing elements. If the number of elements is unknown, the known losses are a minimum.
func (c *cluster) lossesAreCounted(d *dataset) (lost int) {
	c.t.Helper()
	taken := map[uint64]int{}
	for _, v := range c.ledger.visits {
		taken[v.epoch]++
	}
	reported, truncated := map[uint64]uint64{}, map[uint64]uint32{}
	count := func() {
		for _, job := range c.running()[0].status().GetJobs() {
			for _, epoch := range job.GetEpochs() {
				// A trainer that the dispatcher had removed continued in another job.
				reported[epoch.GetEpoch()] = max(reported[epoch.GetEpoch()], epoch.GetLost())
				truncated[epoch.GetEpoch()] = max(truncated[epoch.GetEpoch()], epoch.GetStreamsTruncated())
			}
		}
	}
	for epoch := range uint64(epochsRead) {
		missing := d.elements() - taken[epoch]
		lost += missing
		c.eventually(fmt.Sprintf("of epoch %d of %s %d elements are missing, and the dispatcher knows", epoch, d.name, missing), time.Minute, func() bool {
			count()
			return missing == 0 || truncated[epoch] > 0 && (reported[epoch] == uint64(missing) || !d.known && reported[epoch] < uint64(missing))
		})
		if reported[epoch] > uint64(missing) {
			c.t.Errorf("of epoch %d of %s %d elements are missing, and the dispatcher says %d", epoch, d.name, missing, reported[epoch])
		}
	}
	return lost
}

func compare(got, want []int64, promised promise) error {
	count := map[int64]int{}
	for _, id := range got {
		count[id]++
	}
	var lost, twice []int64
	for _, id := range want {
		switch n := count[id]; {
		case n == 0 && promised != atMost:
			lost = append(lost, id)
		case n > 1 && promised != atLeast:
			twice = append(twice, id)
		}
		delete(count, id)
	}
	if len(lost)+len(twice)+len(count) > 0 {
		return fmt.Errorf("%d ids are lost %v, %d came more than once %v, %d are none of its %v", len(lost), lost, len(twice), twice, len(count), count)
	}
	return nil
}

// tap watches a trainer's requests to workers: the lease of a stream never decreases.
func (l *ledger) tap(trainer int, nc net.Conn) net.Conn {
	return &tapped{Conn: nc, ledger: l, trainer: trainer}
}

type tapped struct {
	net.Conn
	ledger  *ledger
	trainer int
	// again has frames that were read from the connection and not yet by the trainer, some of them twice.
	again bytes.Buffer
}

// Read returns bytes as they arrive. If the ledger asks for it, Read returns whole frames and adds false ones.
func (t *tapped) Read(p []byte) (int, error) {
	if t.again.Len() > 0 {
		return t.again.Read(p)
	}
	if t.ledger.twice.Load() == 0 && t.ledger.stale.Load() == 0 || t.Conn.RemoteAddr().(*net.TCPAddr).Port != workerPort {
		return t.Conn.Read(p)
	}
	var whole bytes.Buffer
	h, meta, err := frame.NewReader(io.TeeReader(t.Conn, &whole)).Next()
	head := whole.Len()
	if err == nil {
		_, err = io.CopyN(&whole, t.Conn, int64(h.PayloadLen))
	}
	if err != nil {
		return 0, err
	}
	t.again.Write(whole.Bytes())
	if h.Type == frame.Data && t.ledger.twice.Add(-1) >= 0 {
		t.again.Write(whole.Bytes())
	}
	if h.Type == frame.Data && h.Lease > 1 && t.ledger.stale.Add(-1) >= 0 {
		h.Lease, h.Index = h.Lease-1, h.Index+uint64(h.Count)
		t.again.Write(frame.Append(nil, h, meta))
		t.again.Write(whole.Bytes()[head:])
	}
	return t.again.Read(p)
}

// Write passes bytes on. Frames for workers are written whole, and the dispatcher's messages do not look like
// frames.
func (t *tapped) Write(p []byte) (int, error) {
	frames := frame.NewReader(bytes.NewReader(p))
	asked := map[uint32]*pecanv1.OpenStream{}
	for {
		h, meta, err := frames.Next()
		if err != nil {
			break
		}
		open := new(pecanv1.OpenStream)
		switch {
		case h.Type == frame.Open && proto.Unmarshal(meta, open) == nil:
			asked[h.Channel] = open
		case h.Type == frame.Close:
			// The request waited for the connection, and nobody needs it any more.
			delete(asked, h.Channel)
		}
	}
	for _, open := range asked {
		t.ledger.opened(t.trainer, open)
	}
	return t.Conn.Write(p)
}

func (l *ledger) opened(trainer int, open *pecanv1.OpenStream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := streamOf{trainer, open.GetId().Key()}
	before := l.leases[key]
	if open.GetLease() < before {
		l.t.Errorf("trainer %d asks for %s under lease %d, after it knew %d", trainer, key.stream, open.GetLease(), before)
	}
	if before > 0 && open.GetLease() > before {
		l.moves[trainer]++
	}
	l.leases[key] = max(before, open.GetLease())
}
