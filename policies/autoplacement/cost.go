package autoplacement

import "github.com/pecan-ml/pecan/policies/autoscale"

// spending is the cost of windows of searches above the best known configuration, as in autoscale.Decision.
type spending struct{ cost, lost, bill float64 }

// charge is a window of a search.
type charge struct {
	at            autoscale.Configuration
	time, seconds float64
}

// charge adds a window of the search. The cost of the windows of this search follows from the best configuration that is
// known by now.
func (s *Search) charge(m *model, c charge) {
	s.windows++
	s.charged = append(s.charged, c)
	s.spent = s.before
	best := s.goal.Score(s.best, m.estimate(s.best))
	for _, c := range s.charged {
		score := s.goal.Score(c.at, c.time)
		excess := max(0, score-best)
		lost := c.seconds * excess / score
		s.spent.cost += excess
		s.spent.lost += lost
		if s.goal.Priced() {
			s.spent.bill += lost / 3600 * s.goal.PerHour(c.at)
		}
	}
}
