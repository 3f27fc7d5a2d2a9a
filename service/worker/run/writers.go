package run

import (
	"context"
)

// fileKey identifies the files that a stream's caches and snapshots write. Their paths are in the graph, and
// each stream has its own.
type fileKey struct {
	fingerprint     string
	stream, streams uint32
}

// registerWriter makes r the newest run over its files. If the previous run was stopped, it returns a channel
// that is closed when that run has ended. A previous run that is not stopped may run forever. Both runs then
// meet TensorFlow's own check, as two iterators of one trainer do locally.
func (ss *Streams) registerWriter(r *run) <-chan struct{} {
	key := fileKey{r.command.GetFingerprint(), r.command.GetId().GetStream(), uint32(r.command.GetPlan().GetNumStreams())}
	ss.writersMu.Lock()
	defer ss.writersMu.Unlock()
	before := ss.writers[key]
	ss.writers[key] = r
	context.AfterFunc(r.ctx, func() {
		<-r.done
		ss.writersMu.Lock()
		defer ss.writersMu.Unlock()
		if ss.writers[key] == r {
			delete(ss.writers, key)
		}
	})
	if before == nil || before.ctx.Err() == nil {
		return nil
	}
	return before.done
}
