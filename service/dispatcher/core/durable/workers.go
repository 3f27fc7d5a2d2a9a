package durable

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func (s *State) applyWorker(record *pecanv1.Record) error {
	if forgotten := record.GetWorkerForgotten(); forgotten != nil {
		if len(s.leases[forgotten.WorkerId]) > 0 {
			return fmt.Errorf("worker %q cannot be forgotten, because it holds streams", forgotten.WorkerId)
		}
		for _, number := range s.numbers[forgotten.WorkerId] {
			delete(s.workers, number)
		}
		delete(s.numbers, forgotten.WorkerId)
		return nil
	}
	named := record.GetWorkerNamed()
	if named.GetNumber() == 0 || named.GetWorker() == nil || s.workers[named.Number] != nil {
		return fmt.Errorf("worker %q cannot have the number %d, which is no free number", named.GetWorker().GetWorkerId(), named.GetNumber())
	}
	s.nameWorker(named.Number, named.Worker)
	return nil
}

func (s *State) nameWorker(number uint32, worker *pecanv1.WorkerAddress) {
	s.workers[number] = worker
	s.numbers[worker.WorkerId] = append(s.numbers[worker.WorkerId], number)
}

// WorkerNumber returns the number of a worker at this address; 0 without one.
func (s *State) WorkerNumber(worker *pecanv1.WorkerAddress) uint32 {
	for _, number := range s.numbers[worker.GetWorkerId()] {
		if named := s.workers[number]; named == worker || proto.Equal(named, worker) {
			return number
		}
	}
	return 0
}

// FreeWorkerNumber returns a number that no worker has.
func (s *State) FreeWorkerNumber() uint32 {
	number := uint32(len(s.workers)) + 1
	for s.workers[number] != nil {
		number++
	}
	return number
}

// HasNumber reports whether a worker has a number.
func (s *State) HasNumber(workerID string) bool { return len(s.numbers[workerID]) > 0 }

// NamedWorkers returns the ids of the workers that have numbers, ascending.
func (s *State) NamedWorkers() []string { return slices.Sorted(maps.Keys(s.numbers)) }
