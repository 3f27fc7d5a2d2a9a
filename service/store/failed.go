package store

import (
	"errors"
	"fmt"
)

// Failed is closed when the store cannot be written any more.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// guard runs a write, and gives up on it when pebble declared the database dead: pebble then never returns.
func (s *Store) guard(write func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			// Pebble panics where a directory cannot be synced.
			if p := recover(); p != nil {
				done <- fmt.Errorf("%v", p)
			}
		}()
		done <- write()
	}()
	select {
	case err := <-done:
		var known *fault
		if errors.As(err, &known) {
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

// fail marks the store as dead.
func (s *Store) fail(why string) {
	s.failWith(faultf(ErrFailed, nil, "write to store %s: %s; nothing is served any more, because what is on disk is not known. Check the disk and start the dispatcher again", s.dir, why))
}

// failDamaged marks the store as dead because a file of it is not what was written.
func (s *Store) failDamaged(file string) {
	s.failWith(faultf(ErrDamaged, nil, "read store %s: %s is damaged; nothing is served any more. Check the disk. %s", s.dir, file, wayOut))
}

func (s *Store) failWith(failure error) {
	s.failOnce.Do(func() {
		s.failure = failure
		close(s.failed)
	})
}
