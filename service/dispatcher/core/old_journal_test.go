package core_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Old stores have records and snapshots without assignment numbers.
func TestAnOldStoreWithoutAssignmentNumbersIsRead(t *testing.T) {
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=4", "job client=a request=r1 dataset=f1 name=n streams=2",
		"open client=a request=o1 job=j1 pass=0",
	} {
		s.run(line)
	}
	older := durable.NewState()
	for i, record := range s.records {
		record := proto.Clone(record).(*pecanv1.Record)
		if assigned := record.GetConsumerAssigned(); assigned != nil {
			assigned.Assignment = 0
		}
		if err := older.Apply(record); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	if older.Hash() != s.core.State().Hash() {
		t.Fatalf("older records give\n%v\ninstead of\n%v", older.Snapshot(), s.core.State().Snapshot())
	}
	snapshot := proto.Clone(older.Snapshot()).(*pecanv1.Snapshot)
	for _, stream := range snapshot.Jobs[0].Epochs[0].Streams {
		if stream.Assignment != 1 {
			t.Fatalf("nobody reads %v", stream)
		}
		stream.Assignment = 0
	}
	data, err := proto.Marshal(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := durable.Restore(data)
	if err != nil || restored.Hash() != older.Hash() {
		t.Fatalf("an older snapshot gives %v (%v)", restored.Snapshot(), err)
	}
}
