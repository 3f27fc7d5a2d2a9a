package autoscale

import "fmt"

// Policy decides how many workers a job has. Next is called once for each measurement window.
type Policy interface {
	Next(Goal, Window) Decision
}

// Decision is the choice of a policy with its reason.
type Decision struct {
	Target Configuration
	// InTrainer is the number of last steps that run in the trainer's process instead of on workers. It is 0 for all policies but
	// FastFlow.
	InTrainer int
	// State is the state of the policy's search.
	State string
	// Converged is whether the policy does not search at the moment.
	Converged bool
	// Reason is one sentence for the log.
	Reason string
	// Candidates has the configurations that the policy compared, best first. It is empty for policies that do
	// not predict.
	Candidates []Candidate
	// SearchCost is the cost of the search so far above the bill of the best known configuration, in the
	// unit of Goal.Score.
	SearchCost float64
	// SearchWindows is the number of measurement windows of searches. SearchLost is the part of their seconds that the
	// best known configuration would have saved, measured by the score. SearchBill is the price of that part.
	SearchWindows          int
	SearchLost, SearchBill float64
}

// Candidate is a configuration that was measured or predicted.
type Candidate struct {
	Workers Configuration
	// Predicted and Measured are times between two elements, in seconds. Measured is 0 without a window.
	Predicted, Measured float64
	// Windows is the number of windows behind Measured.
	Windows int
	// Score is the value that the objective minimises.
	Score float64
}

func (c Configuration) String() string {
	return fmt.Sprintf("%d remote, %d local", c.Remote, c.Local)
}
