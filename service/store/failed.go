package store

import (
	"errors"
	"fmt"
)

// Failed is closed when the store has failed and accepts no further writes.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// guard runs a write and waits for its end or for the failure of the store. After a fatal error pebble never returns
// from the write, so guard must not wait for the write alone. A failed store begins no write. The write would reuse the
// number of the failed record, and after a crash the store could have either of the two.
func (s *Store) guard(write func() error) error {
	select {
	case <-s.failed:
		return s.failure
	default:
	}
	done := make(chan error, 1)
	go func() {
		defer func() {
			// Pebble panics if it cannot sync a directory.
			if p := recover(); p != nil {
				done <- fmt.Errorf("%v", p)
			}
		}()
		done <- write()
	}()
	select {
	case err := <-done:
		var typed *fault
		if errors.As(err, &typed) {
			s.failWith(err)
			return s.failure
		}
		if err != nil {
			s.fail(err.Error())
			return s.failure
		}
		return nil
	case <-s.failed:
		return s.failure
	}
}

// fail marks the store as failed.
func (s *Store) fail(why string) {
	s.failWith(faultf(ErrFailed, nil, "write to store %s: %s; the dispatcher stops, because the state of the disk is unknown. Check the disk and start the dispatcher again", s.dir, why))
}

// failDamaged marks the store as failed because one of its files is damaged.
func (s *Store) failDamaged(file string) {
	s.failWith(faultf(ErrDamaged, nil, "read store %s: %s is damaged; the dispatcher stops. Check the disk. %s", s.dir, file, restoreHint))
}

func (s *Store) failWith(failure error) {
	s.failOnce.Do(func() {
		s.failure = failure
		close(s.failed)
	})
}
