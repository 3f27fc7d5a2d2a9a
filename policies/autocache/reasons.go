package autocache

import "fmt"

// whyNot says why a candidate cannot be chosen.
func whyNot(c Candidate) string {
	if c.Illegal != "" {
		return c.Illegal
	}
	return "it is not measured yet"
}

// saving says what a candidate saves.
func (in *Input) saving(c Candidate, p Prediction, d Decision) string {
	gain, over := 100*(1-p.Total/(p.Epochs*d.Compute.Score)), epochs(p.Epochs)
	if n := c.Others.Jobs; n > 0 {
		over += fmt.Sprintf(" (%.3g as in %s with the same steps up to here)", c.Others.Epochs, jobs(n))
	}
	text := fmt.Sprintf("saves %.3g %% over %s", gain, over)
	if gain < 0 {
		text = fmt.Sprintf("costs %.3g %% more over %s", -gain, over)
	}
	if p.Share > c.Stored {
		text += fmt.Sprintf(": %s to write, then %s instead of %s", seconds(p.Put.Seconds), seconds(p.Get.Seconds), seconds(d.Compute.Seconds))
	} else {
		text += fmt.Sprintf(": %s to read what is stored instead of %s", seconds(p.Get.Seconds), seconds(d.Compute.Seconds))
	}
	if p.Share < 1 {
		text += fmt.Sprintf("; %.0f %% of its %s are kept", 100*p.Share, size(c.size()))
	}
	if p.Get.Workers != d.Compute.Workers {
		text += fmt.Sprintf("; with %v instead of %v", p.Get.Workers, d.Compute.Workers)
	}
	return text
}

// reason says why a choice was made. best is the best candidate, lowest the best of all, now the choice in force.
func (in *Input) reason(d Decision, now, best, lowest int) string {
	name := d.name
	// more saves most, and too little in each epoch.
	more := d.best(func(i int) bool {
		return !d.gains(i, now) && d.saved(i)-d.saved(lowest) > rounding*d.Candidates[i].Total
	})
	switch {
	case best == None:
		return "no step can be cached"
	case d.Choice != lowest:
		return fmt.Sprintf("%s stays: %s would save less than %.2g %%", name(d.Choice), name(lowest), 100*d.needed(lowest, now))
	case lowest == None && more != None:
		return fmt.Sprintf("computing is chosen: %s would save more in all, but less than %.0f %% of an epoch", name(more), 100*margin)
	case lowest == None && d.Compute.Bound == ByTrainer:
		return fmt.Sprintf("computing costs least, because the trainers are the bound: %s %s", name(best), d.Candidates[best].Reason)
	case lowest == None:
		return fmt.Sprintf("computing costs least: %s %s", name(best), d.Candidates[best].Reason)
	case now == lowest:
		return fmt.Sprintf("%s stays: it %s", name(lowest), d.Candidates[lowest].Reason)
	case more != None:
		return fmt.Sprintf("%s is chosen: it %s; %s would save more in all, but less than %.0f %% of an epoch", name(lowest), d.Candidates[lowest].Reason, name(more), 100*margin)
	}
	for i := range d.Candidates {
		if d.Candidates[i].Eligible && d.gains(i, now) && d.saved(i) > d.saved(lowest) {
			return fmt.Sprintf("%s has nearly the lowest cost and is the smallest such cache: it %s", name(lowest), d.Candidates[lowest].Reason)
		}
	}
	return fmt.Sprintf("%s costs least: it %s", name(lowest), d.Candidates[lowest].Reason)
}

// tryReason says why another choice than the decided one is tried.
func (d *Decision) tryReason(choice int) string {
	text := fmt.Sprintf("%s is tried, because it may be faster than %s: epochs of %s and %s are", d.name(choice), d.name(d.Choice), seconds(d.secondsOf(choice)), seconds(d.secondsOf(d.Choice)))
	if c := d.corrections.of(choice); c.measured {
		return fmt.Sprintf("%s expected after %s", text, epochs(float64(c.samples)))
	}
	return text + " expected"
}

// secondsOf returns the time of an epoch with a choice that is not the first one.
func (d *Decision) secondsOf(choice int) float64 {
	if choice == None {
		return d.Compute.Seconds
	}
	return d.Candidates[choice].Get.Seconds
}

func (d *Decision) name(choice int) string {
	if choice == None {
		return "computing"
	}
	return "the cache at " + d.Candidates[choice].Name
}

func epochs(n float64) string {
	if n == 1 {
		return "1 epoch"
	}
	return fmt.Sprintf("%.3g epochs", n)
}

func jobs(n int) string {
	if n == 1 {
		return "1 earlier job"
	}
	return fmt.Sprintf("%d earlier jobs", n)
}

// seconds formats a time.
func seconds(s float64) string {
	switch {
	case s < 1:
		return fmt.Sprintf("%.3g ms", 1e3*s)
	case s < 1000:
		return fmt.Sprintf("%.3g s", s)
	}
	return fmt.Sprintf("%.0f s", s)
}

// size formats a number of bytes.
func size(bytes float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if bytes < 999.5 {
			return fmt.Sprintf("%.3g %s", bytes, unit)
		}
		bytes /= 1000
	}
	return fmt.Sprintf("%.3g TB", bytes)
}
