package cachefill

import (
	"errors"
	"fmt"
	"io"

	"github.com/pecan-ml/pecan/native/tf"
)

// mostLent and bytesLent bound what the op fetches by itself. It is held in memory until it is written.
const mostLent, bytesLent = 64, 4 << 20

// Pull implements tf.Source.
func (s *Source) Pull() ([]*tf.Tensor, error) { return s.PullOrLend(nil) }

// PullOrLend implements tf.Lender.
func (s *Source) PullOrLend(loan *tf.Loan) ([]*tf.Tensor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.reclaim()
	for {
		switch {
		case s.closed:
			return nil, tf.ErrCancelled
		case s.done == len(s.Stream.Parts):
			return nil, io.EOF
		}
		var tensors []*tf.Tensor
		if err == nil {
			if !s.begun {
				if err := s.beginPart(); err != nil {
					return nil, err
				}
			}
			tensors, err = s.pull()
		}
		if !errors.Is(err, io.EOF) {
			if err == nil && loan != nil && s.Lends && s.upstream != nil && !s.upstream.packed {
				s.upstream.it.Lend(loan, mostLent, bytesLent)
			}
			return tensors, err
		}
		s.endPart()
		err = nil
	}
}

// reclaim writes what the op has fetched from the upstream graph by itself, and returns why it fetches no more; nil if it may go on.
func (s *Source) reclaim() error {
	if s.upstream == nil {
		return nil
	}
	elements, took, err := s.upstream.it.Reclaim()
	s.computing += took
	for _, element := range elements {
		s.computed(asElement(element))
		tf.ReleaseAll(element)
	}
	s.failed(err)
	return err
}

// computed notes elements of the upstream graph.
func (s *Source) computed(got *pulled) {
	s.write(&got.chunk)
	s.delivered += uint64(got.chunk.Count)
}

// failed notes an error of the upstream graph. Failures may depend on more than the files, and a segment cannot say which of its
// elements would fail. Without memory, elements are lost that the graph has given.
func (s *Source) failed(err error) {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, tf.ErrCancelled) {
		s.drop(fmt.Errorf("an element failed: %w", err))
	}
}
