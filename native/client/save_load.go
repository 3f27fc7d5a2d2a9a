package client

import (
	"context"

	"github.com/pecan-ml/pecan/native/client/resume"
	"github.com/pecan-ml/pecan/proto/reason"
)

// NewIterator notes that the training loop creates an iterator, and returns the number that identifies it to
// Save.
func (r *RejoiningJob) NewIterator() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.NewIterator()
}

// Save returns the token of the position after the first consumed elements of an iterator; NewIterator gave
// its number. With number 0 it counts the elements of all iterators since the dataset was created or a state
// was loaded. An error in an element's position counts as one element. ended is true if the training loop has no open
// iterator, and its next one begins at the start of a pass.
func (r *RejoiningJob) Save(iterator, consumed uint64, ended bool) (string, error) {
	r.mu.Lock()
	job, positions := r.job, r.log
	r.mu.Unlock()
	if err := resume.CheckResumable(job.consumer); err != nil {
		return "", err
	}
	at, err := positions.At(iterator, consumed, ended)
	if err != nil {
		return "", err
	}
	return resume.Encode(resume.NewToken(job.consumer, at))
}

// Load lets the next iteration begin at a token's position, in a new job with the token's seed. Open
// iterations end.
func (r *RejoiningJob) Load(ctx context.Context, token string) error {
	t, err := resume.Decode(token)
	if err != nil {
		return err
	}
	r.loading.Lock()
	defer r.loading.Unlock()
	r.mu.Lock()
	old, closed := r.job, r.closed
	r.mu.Unlock()
	if closed {
		return reason.New(reason.Closed, "load a state: the dataset was closed")
	}
	if err := resume.CheckResumable(old.consumer); err != nil {
		return err
	}
	// A new job gets the number of streams of the state. The old one may have another number, and then another plan.
	if plan := old.consumer.Plan; plan.GetNumStreams() == t.GetNumStreams() && plan.GetGroup() == t.GetGroup() {
		if err := resume.Check(t, old.consumer, r.spec.Options); err != nil {
			return err
		}
	}
	fresh, err := r.create(ctx, r.spec.seeded(t.GetSeed(), t.GetNumStreams(), t.GetGroup()))
	if err != nil {
		return err
	}
	if err := resume.Check(t, fresh.consumer, r.spec.Options); err != nil {
		fresh.shut()
		return err
	}
	r.mu.Lock()
	if r.job != old || r.closed {
		r.mu.Unlock()
		fresh.shut()
		return reason.New(reason.Closed, "load a state: the dataset's job was closed or recreated meanwhile; load it again")
	}
	r.job, r.log = fresh, r.log.Load(&resume.Point{Position: t.GetPosition(), Passes: t.GetPasses(), Elements: t.GetElements(), Loaded: true})
	r.mu.Unlock()
	old.shut()
	return nil
}
