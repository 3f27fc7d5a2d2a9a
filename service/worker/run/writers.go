package run

import (
	"context"
)

// fileKey names the files that a stream's caches and snapshots write: their paths are in the graph, and those of each stream its own.
type fileKey struct {
	fingerprint     string
	stream, streams uint32
}

// registerWriter makes a run the newest over its files, and gives what is closed when the one before it has ended, if that was stopped. One that is
// not stopped may go on for ever; both then meet TensorFlow's own check, as two iterators of one trainer do locally.
func (w *Streams) registerWriter(r *run) <-chan struct{} {
	key := fileKey{r.order.GetFingerprint(), r.order.GetId().GetStream(), uint32(r.order.GetPlan().GetNumStreams())}
	w.writersMu.Lock()
	defer w.writersMu.Unlock()
	before := w.writers[key]
	w.writers[key] = r
	context.AfterFunc(r.ctx, func() {
		<-r.done
		w.writersMu.Lock()
		defer w.writersMu.Unlock()
		if w.writers[key] == r {
			delete(w.writers, key)
		}
	})
	if before == nil || before.ctx.Err() == nil {
		return nil
	}
	return before.done
}
