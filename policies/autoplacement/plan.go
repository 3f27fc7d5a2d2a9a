package autoplacement

import (
	"fmt"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// change begins a search because elements of another plan cost something else. It begins with the predicted workers, or with
// the present ones.
func (s *Search) change(plan uint64, g autoscale.Goal) (reason string) {
	s.plan, s.obs, s.replanned, s.calm = plan, nil, true, Curve{}
	reason = "the plan of the job changed"
	if s.Predicted != nil {
		s.target = g.Limits.Clamp(*s.Predicted)
		reason += fmt.Sprintf(", and is predicted to need %v", s.target)
	}
	s.begin()
	return reason
}

// replan scales the curve of a kind that has no workers: a new plan changes both kinds alike.
func (s *Search) replan(m *model, o observation) *model {
	s.replanned = false
	switch old := s.known; {
	case o.local == 0 && o.remote > 0 && old.Remote.Rate > 0:
		s.known.Local.Rate *= m.remote.at(o.at.Remote) / old.Remote.at(o.at.Remote)
	case o.remote == 0 && o.local > 0 && old.Local.Rate > 0:
		s.known.Remote.Rate *= m.local.at(o.at.Local) / old.Local.at(o.at.Local)
	}
	return newModel(s.obs, s.goal.Trainers, s.known)
}
