package client

import (
	"context"
	"fmt"

	"github.com/pecan-ml/pecan/native/client/control"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// LevelNotice is the level of messages that the trainer's log shows as information.
const LevelNotice = control.LevelNotice

// notePlacement logs a decision on the job's workers once. It logs when the numbers change, and when a search ends.
// heartbeat is the number of the answered heartbeat, because answers may arrive out of order.
func (j *Job) notePlacement(ctx context.Context, heartbeat uint64, p *pecanv1.Placement) {
	j.mu.Lock()
	if p == nil || heartbeat < j.placedBy {
		j.mu.Unlock()
		return
	}
	before := j.placement
	changed := before == nil || before.Remote != p.Remote || before.Local != p.Local
	ended := p.Converged && before != nil && !before.Converged
	j.placement, j.placedBy = p, heartbeat
	j.mu.Unlock()
	if changed || ended {
		j.session.link.Log().Log(ctx, LevelNotice, placementLine(before, p, changed), "job", j.consumer.JobID)
	}
}

// noteAdvice logs once what a wider order tolerance would save.
func (j *Job) noteAdvice(ctx context.Context, advice string) {
	j.mu.Lock()
	first := advice != "" && !j.advised
	j.advised = j.advised || first
	j.mu.Unlock()
	if first {
		j.session.link.Log().Log(ctx, LevelNotice, advice, "job", j.consumer.JobID)
	}
}

func placementLine(before, p *pecanv1.Placement, changed bool) string {
	workers := func(p *pecanv1.Placement) string {
		return fmt.Sprintf("%d remote and %d local workers", p.Remote, p.Local)
	}
	switch {
	case !changed:
		return fmt.Sprintf("the placement stays at %s: %s", workers(p), p.Why)
	case before == nil:
		return fmt.Sprintf("the placement is %s: %s", workers(p), p.Why)
	}
	return fmt.Sprintf("the placement changed from %s to %s: %s", workers(before), workers(p), p.Why)
}
