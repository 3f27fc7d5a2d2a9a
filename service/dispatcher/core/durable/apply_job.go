package durable

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func (s *State) applyJob(record *pecanv1.Record) error {
	if kind, ok := record.Kind.(*pecanv1.Record_JobCreated); ok {
		return s.applyJobCreated(kind.JobCreated)
	}
	switch kind := record.Kind.(type) {
	case *pecanv1.Record_JobJoined:
		r := kind.JobJoined
		job, err := s.job(r.JobId)
		if err != nil {
			return err
		}
		client, ok := s.clients[r.ClientId]
		if !ok {
			return fmt.Errorf("client %q does not exist", r.ClientId)
		}
		if !slices.Contains(job.ClientIds, r.ClientId) {
			job.ClientIds = append(job.ClientIds, r.ClientId)
		}
		addRequest(client, &pecanv1.StoredRequest{RequestId: r.RequestId, JobId: r.JobId})
	case *pecanv1.Record_JobLeft:
		job, err := s.job(kind.JobLeft.JobId)
		if err != nil {
			return err
		}
		job.ClientIds = slices.DeleteFunc(job.ClientIds, func(id string) bool { return id == kind.JobLeft.ClientId })
		if client, ok := s.clients[kind.JobLeft.ClientId]; ok {
			client.Requests = slices.DeleteFunc(client.Requests, func(q *pecanv1.StoredRequest) bool { return q.JobId == job.JobId })
		}
	case *pecanv1.Record_JobFailed:
		job, err := s.job(kind.JobFailed.JobId)
		if err != nil {
			return err
		}
		job.Error = kind.JobFailed.Error
	case *pecanv1.Record_JobRemoved:
		job, err := s.job(kind.JobRemoved.JobId)
		if err != nil {
			return err
		}
		for _, epoch := range job.Epochs {
			s.drop(epoch)
		}
		delete(s.jobs, job.JobId)
		if s.named[job.Name] == job.JobId {
			delete(s.named, job.Name)
		}
		s.ordered = slices.DeleteFunc(s.ordered, func(j *Job) bool { return j == job })
	}
	return nil
}

func (s *State) applyJobCreated(r *pecanv1.JobCreated) error {
	if _, taken := s.jobs[r.JobId]; taken {
		return fmt.Errorf("job %q exists already", r.JobId)
	}
	if _, taken := s.named[r.Name]; taken && r.Name != "" {
		return fmt.Errorf("a job named %q exists already", r.Name)
	}
	s.addJob(&Job{StoredJob: &pecanv1.StoredJob{
		JobId: r.JobId, Name: r.Name, DatasetId: r.DatasetId, Options: r.Options, Plan: r.Plan, Sequence: s.applied + 1,
	}})
	return nil
}

// addRequest keeps the newest requests of a client.
func addRequest(client *pecanv1.StoredClient, request *pecanv1.StoredRequest) {
	if request.RequestId == "" {
		return
	}
	client.Requests = append(client.Requests, request)
	if over := len(client.Requests) - maxRequests; over > 0 {
		client.Requests = slices.Delete(client.Requests, 0, over)
	}
}
