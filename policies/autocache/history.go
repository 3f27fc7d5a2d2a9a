package autocache

// firstEpochs is how many epochs a job is expected to begin if nothing is known: the next one and two more.
const firstEpochs = 3

// PastJob is an earlier job.
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

// Others is what earlier jobs say of the epochs of later jobs.
type Others struct {
	// Epochs is the number of epochs that later jobs are expected to begin while a cache is kept. Jobs is the number of earlier
	// jobs that began as many.
	Epochs float64
	Jobs   int
	// Hours is for how long the cache is kept beside the expected epochs.
	Hours float64
}

// ExpectOthers returns what is expected of later jobs while a cache is kept: for some hours, or forever if hours is 0. It expects as
// many epochs as earlier jobs began in the same time. A cache that is kept forever serves as many epochs as there were since
// the first known job, so it pays for that time.
func ExpectOthers(hours float64, past []PastJob) Others {
	o := Others{Hours: hours}
	for _, job := range past {
		if hours == 0 {
			o.Hours = max(o.Hours, job.Ago)
		}
		if job.Ago <= o.Hours {
			o.Epochs, o.Jobs = o.Epochs+job.Epochs, o.Jobs+1
		}
	}
	return o
}
