package epoch

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// A worker can still change an element in shared memory after the client has checked it.
func TestStringsThatChangeAfterTheCheckLeaveNoLockHeld(t *testing.T) {
	pool, err := buffer.NewPool(buffer.Config{Checked: true})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	buf, err := pool.Get(11)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Release()
	binary.LittleEndian.PutUint64(buf.Bytes(), 1<<40)
	table := &frame.Table{Components: 1, Rows: []frame.Tensor{{DType: frame.DTString, Bytes: 11}}}
	e := &Epoch{Consumer: &Consumer{Plan: &pecanv1.Plan{NumStreams: 1}}}
	st := e.streamOf(0)
	st.queue = []element.Entry{{Elements: 1, Table: table, Buffer: buf}}
	e.settle(st)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a string of a tebibyte was taken")
			}
		}()
		_, _, _ = e.Dequeue(1, false)
	}()
	if !e.mu.TryLock() {
		t.Error("the epoch's lock stays held: closing it waits forever")
	}
	e.mu.Unlock()
}

func TestAFailedEpochDialsNoWorker(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		next time.Duration
	}{
		"failed":      {err: reason.New(reason.ElementPoison, "three workers died")},
		"waits a bit": {next: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Epoch{active: true, err: c.err}
			now := time.Now()
			st := e.streamOf(0)
			st.worker, st.retryAt = &pecanv1.WorkerAddress{WorkerId: "w"}, now.Add(c.next)
			e.settle(st)
			if next := e.reconcile(now); next != c.next || st.receiver != nil {
				t.Errorf("its streams are looked at again in %v", next)
			}
		})
	}
}
