package core_test

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/journaltest"
	"google.golang.org/protobuf/proto"
)

// singles returns the entries of a list record as the records of one stream each. The names of workers are left out.
func (s *script) singles(record *pecanv1.Record) []*pecanv1.Record {
	s.t.Helper()
	if record.GetWorkerNamed() != nil || record.GetWorkerForgotten() != nil {
		return nil
	}
	if s.lists == nil {
		s.lists = journaltest.NewLists(nil)
	}
	for _, next := range s.records[len(s.listed):] {
		singles, err := s.lists.Next(next)
		if err != nil {
			s.t.Fatal(err)
		}
		s.listed = append(s.listed, singles)
	}
	// Most callers ask for one of the last records.
	for i, earlier := range slices.Backward(s.records) {
		if proto.Equal(earlier, record) {
			return s.listed[i]
		}
	}
	s.t.Fatalf("the journal lacks %v", record)
	return nil
}

// commonKey names what streams of an epoch have in common in a session.
type commonKey struct {
	session core.SessionID
	job     string
	epoch   uint64
}

// commands returns a command as commands for one stream each. A StopStreams that ends an epoch is returned as it is.
func (s *script) commands(command core.Command) (list []*pecanv1.WorkerCommand) {
	s.t.Helper()
	if starts := command.Message.GetStartStreams(); starts != nil {
		key := commonKey{command.Session, starts.JobId, starts.Epoch}
		if starts.Common != nil {
			s.commons[key] = starts.Common
		}
		if s.commons[key] == nil {
			s.t.Fatalf("session %d: %v names nothing that its streams have in common", command.Session, starts)
		}
		for _, start := range starts.Starts(s.commons[key]) {
			list = append(list, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Start{Start: start}})
		}
		return list
	}
	stops := command.Message.GetStopStreams()
	if stops == nil {
		return []*pecanv1.WorkerCommand{command.Message}
	}
	singles, err := stops.Stops()
	if err != nil {
		s.t.Fatalf("session %d: %v: %v", command.Session, stops, err)
	}
	for _, stop := range singles {
		list = append(list, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Stop{Stop: stop}})
	}
	if stops.Over {
		delete(s.commons, commonKey{command.Session, stops.JobId, stops.Epoch})
		list = append(list, command.Message)
	}
	return list
}

func showOver(stops *pecanv1.StopStreams) string {
	return fmt.Sprintf("stop %s/%d, which is over", stops.JobId, stops.Epoch)
}
