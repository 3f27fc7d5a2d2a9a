package measure

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Window is a measurement window of one job: what its trainers, workers and hosts did while the same workers served it.
type Window struct {
	// End is when the window ended, and Length its duration.
	End, Length time.Duration
	// Remote and Local are the numbers of workers that served the job.
	Remote, Local int
	// Gap is set if reports are missing. Disturbed is set if the job's share of its workers changed, because other jobs
	// began or ended there.
	Gap, Disturbed bool

	Trainers []Trainer
	Fleet    []Serving
	Hosts    []*pecanv1.HostLoad
}

// Trainer is one trainer in a window.
type Trainer struct {
	Host string
	Subs []SubWindow
}

// Serving is one worker in a window.
type Serving struct {
	Host  string
	Local bool
	Cores int
	Rates
}

// Demand returns the time in which the trainer takes an element if it never waits.
func (t Trainer) Demand() float64 {
	return Median(t.Subs, func(s SubWindow) float64 { return max(s.ElementTime()*(1-s.Wait()), 0) })
}
