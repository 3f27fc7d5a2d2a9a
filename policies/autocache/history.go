package autocache

import "math"

// firstEpochs is how many epochs a job is expected to begin if nothing is known: the next one and two more.
const firstEpochs = 3

// PastJob is an earlier job with the same steps upstream of a candidate.
type PastJob struct {
	// Ago is how many hours ago it began.
	Ago float64
	// Epochs is the number of epochs that it began.
	Epochs float64
}

// Recorded is an earlier job as it is recorded: when it began, in seconds since 1970, and how many epochs it began.
type Recorded interface {
	GetFirstS() int64
	GetEpochs() uint64
}

// PastJobs returns recorded jobs as they are at a time, in seconds since 1970. A job that begins later counts as one that begins
// then, because clocks differ.
func PastJobs[R Recorded](jobs []R, nowS int64) (past []PastJob) {
	for _, job := range jobs {
		past = append(past, PastJob{Ago: max(float64(nowS-job.GetFirstS()), 0) / 3600, Epochs: float64(job.GetEpochs())})
	}
	return past
}

// ExpectOwn returns how many epochs a job will begin from now on, if it has begun some already. Earlier jobs count if they
// went on after so many epochs. One job without a history counts too. It is expected to run as many further epochs as it has
// begun, and at least firstEpochs.
func ExpectOwn(begun float64, past []PastJob) float64 {
	sum, n := max(begun, firstEpochs), 1.0
	for _, job := range past {
		if job.Epochs > begun {
			sum, n = sum+job.Epochs-begun, n+1
		}
	}
	return sum / n
}

// ExpectOthers returns how many epochs later jobs will begin in the next hours, or ever if hours is 0. It assumes as many as began
// in the same time before.
func ExpectOthers(hours float64, past []PastJob) (epochs float64) {
	if hours == 0 {
		hours = math.Inf(1)
	}
	for _, job := range past {
		if job.Ago <= hours {
			epochs += job.Epochs
		}
	}
	return epochs
}
