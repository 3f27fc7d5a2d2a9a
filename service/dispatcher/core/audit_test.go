package core_test

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// check compares what trainers received in fully read passes with the guarantee of the mode.
func (s *sim) check() {
	for _, record := range s.records {
		if failed := record.GetJobFailed(); failed != nil {
			s.t.Errorf("nothing but kills from outside, and a job failed: %s", failed.GetError().GetMessage())
		}
	}
	total := 0
	for pass := range s.finished {
		for stream := range s.streams() {
			key := fmt.Sprintf("%s/%d", pass, stream)
			got := s.got[key]
			whole := func(run string) bool { return uint64(len(s.got[run])) == s.countIn(pass, stream) }
			if s.mode == pecanv1.Mode_MODE_AT_LEAST_ONCE && countOf(stream) > 0 && !slices.ContainsFunc(s.runs[key], whole) {
				s.t.Errorf("stream %s came in parts, of runs whose elements may be others: %v", key, s.runs[key])
			}
			for index := range s.countIn(pass, stream) {
				lost, twice := s.mode != pecanv1.Mode_MODE_AT_MOST_ONCE, s.mode == pecanv1.Mode_MODE_AT_MOST_ONCE || s.mode == pecanv1.Mode_MODE_EXACTLY_ONCE && !s.deaths
				if n := got[index]; n == 0 && lost || n > 1 && twice {
					s.t.Errorf("pass %s: element %d of stream %d came %d times", pass, index, stream, n)
				}
				total++
			}
		}
	}
	if total == 0 {
		s.t.Error("no pass was read to its end")
	}
	s.checkCarry()
	s.checkReplay()
	if _, err := s.feed(&pecanv1.OpenEpochRequest{ClientId: "stranger", JobId: "j"}); !reason.Is(err, reason.ClientUnknown) {
		s.t.Errorf("a stranger: %v", err)
	}
}

// lossIsCounted compares the status of a fully read pass of one trainer with what the trainer received.
func (s *sim) lossIsCounted(p *simPass) {
	if p.client.name != "" {
		return
	}
	got := uint64(0)
	for stream := range s.streams() {
		got += uint64(len(s.got[fmt.Sprintf("%s/%d/%d", p.client.line, p.epoch, stream)]))
	}
	want := s.elements(fmt.Sprintf("%s/%d", p.client.line, p.epoch))
	for _, job := range s.core.Status(s.now).Jobs {
		for _, epoch := range job.Epochs {
			if job.JobId == p.client.job && epoch.Epoch == p.epoch && epoch.Lost != want-got {
				s.t.Errorf("pass %d of job %s: %d of %d elements came, and %d are reported as lost", p.epoch, job.JobId, got, want, epoch.Lost)
			}
		}
	}
}
