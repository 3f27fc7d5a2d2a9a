package core_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// stale returns a core that starts on another core's records without the last ones.
func stale(t *testing.T, s *script, lost int) *script {
	t.Helper()
	state, left := durable.NewState(), s.records[:len(s.records)-lost]
	for i, record := range left {
		if err := state.Apply(proto.Clone(record).(*pecanv1.Record)); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	again := newScript(t)
	again.core, again.records = core.New(again.cfg, state), left
	again.decide(core.Start{ClusterID: "c"})
	return again
}

func holding(worker string, session core.SessionID, held ...*pecanv1.HeldStream) core.Hello {
	return core.Hello{Session: session, Message: &pecanv1.WorkerHello{
		Address: &pecanv1.WorkerAddress{WorkerId: worker, Tcp: worker + ":1"}, MaxStreams: 4, ClusterId: "c", Held: held,
	}}
}

// D4: a worker holds a lease that the store has lost, so acknowledged records are missing. The job fails with the
// reason, the worker stops, and other jobs continue. The number of the lost lease is never granted again.
func TestD4AStaleStoreIsDetected(t *testing.T) {
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=4",
		"job client=b request=r0 dataset=f1 name=other streams=1", "job client=a request=r1 dataset=f1 name=n streams=2",
		"open client=a request=o1 job=j2 pass=0",
	} {
		s.run(line)
	}
	var granted []*pecanv1.LeaseGranted
	lost := 0
	for i, record := range s.records {
		for _, single := range s.singles(record) {
			if grant := single.GetLeaseGranted(); grant != nil {
				if granted = append(granted, grant); len(granted) == 2 {
					lost = len(s.records) - i
				}
			}
		}
	}
	if len(granted) != 2 {
		t.Fatalf("%d leases", len(granted))
	}
	again := stale(t, s, lost)
	result := again.decide(holding("w1", 2,
		&pecanv1.HeldStream{Id: granted[0].Id, Lease: granted[0].Lease}, &pecanv1.HeldStream{Id: granted[1].Id, Lease: granted[1].Lease}))
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	var failed *pecanv1.JobFailed
	for _, record := range again.records {
		if record.GetJobFailed() != nil {
			failed = record.GetJobFailed()
		}
	}
	if failed.GetJobId() != "j2" || failed.GetError().GetReason() != string(reason.StaleStore) || failed.GetError().GetCode() != 15 {
		t.Fatalf("failed: %v", failed)
	}
	stopped := map[uint32]bool{}
	for _, effect := range result.Effects {
		command, ok := effect.(core.Command)
		if !ok {
			continue
		}
		for _, single := range again.commands(command) {
			if stop := single.GetStop(); stop != nil {
				stopped[stop.Id.Stream] = true
			}
			if single.GetStart() != nil {
				t.Errorf("started %v", command.Message)
			}
		}
	}
	if !stopped[granted[0].Id.Stream] || !stopped[granted[1].Id.Stream] {
		t.Errorf("the worker goes on: stopped are %v", stopped)
	}
	again.run("open client=b request=o2 job=j1 pass=0")
	newest := uint64(0)
	for _, record := range again.records {
		for _, single := range again.singles(record) {
			if grant := single.GetLeaseGranted(); grant != nil && grant.Id.JobId == "j1" {
				newest = grant.Lease
			}
		}
	}
	if newest <= granted[1].Lease {
		t.Errorf("the other job got lease %d; %d is somebody's", newest, granted[1].Lease)
	}
	again.checkReplay()
}

// A lease number that no cluster can have granted, or a worker without a cluster, proves nothing.
func TestD4AnAbsurdLeaseProvesNothing(t *testing.T) {
	for name, change := range map[string]func(*core.Hello){
		"a lease near 2^64": func(h *core.Hello) { h.Message.Held[0].Lease = 1<<64 - 1 },
		"no cluster":        func(h *core.Hello) { h.Message.ClusterId = "" },
		"the lease it has":  func(h *core.Hello) { h.Message.Held[0].Lease = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			for _, line := range []string{
				"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=4", "job client=a request=r1 dataset=f1 name=n streams=1",
				"open client=a request=o1 job=j1 pass=0",
			} {
				s.run(line)
			}
			hello := holding("w1", 2, &pecanv1.HeldStream{Id: &pecanv1.StreamId{JobId: "j1"}, Lease: 3})
			change(&hello)
			s.decide(hello)
			for _, record := range s.records {
				if record.GetJobFailed() != nil {
					t.Fatalf("%v", record)
				}
			}
			if lease := s.core.State().LastLease(); lease > 100 {
				t.Fatalf("lease %d", lease)
			}
		})
	}
}
