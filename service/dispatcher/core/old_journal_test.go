package core_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
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
		if record.GetConsumersAssigned() == nil {
			if err := older.Apply(record); err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
			continue
		}
		for n, single := range s.singles(record) {
			single.GetConsumerAssigned().Assignment = 0
			apply := older.Apply
			if n > 0 {
				apply = older.Extend
			}
			if err := apply(single); err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
		}
	}
	if older.Hash() != s.core.State().Hash() {
		t.Fatalf("older records give\n%v\ninstead of\n%v", older.Snapshot(), s.core.State().Snapshot())
	}
	snapshot := proto.Clone(older.Snapshot()).(*pecanv1.Snapshot)
	epoch := snapshot.Jobs[0].Epochs[0]
	epoch.Opened, epoch.Total, epoch.Delivered, epoch.Truncated = 0, 0, nil, nil
	for _, stream := range epoch.Streams {
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
	if err != nil {
		t.Fatal(err)
	}
	want, got := proto.Clone(older.Snapshot()).(*pecanv1.Snapshot), restored.Snapshot()
	// The old snapshot does not say which record opened the epoch.
	want.Jobs[0].Epochs[0].Opened = got.Jobs[0].Epochs[0].Opened
	if !proto.Equal(want, got) {
		t.Fatalf("an older snapshot gives\n%v\ninstead of\n%v", got, want)
	}
}

// The journals of testdata/version1 are of a dispatcher that kept an entry for each stream. Each file ends with the
// snapshot that they added up to.
func TestJournalsOfVersion1GiveTheSameState(t *testing.T) {
	files, err := filepath.Glob("testdata/version1/*.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no journals: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			records, snapshot := readVersion1(t, file)
			replayed := durable.NewState()
			for i, record := range records {
				if err := replayed.Apply(record); err != nil {
					t.Fatalf("record %d: %v", i, err)
				}
			}
			data, err := proto.Marshal(snapshot)
			if err != nil {
				t.Fatal(err)
			}
			restored, err := durable.Restore(data)
			if err != nil {
				t.Fatal(err)
			}
			isState(t, replayed, snapshot)
			isState(t, restored, snapshot)
			if data, err = replayed.Marshal(); err != nil {
				t.Fatal(err)
			}
			if again, err := durable.Restore(data); err != nil || again.Hash() != replayed.Hash() {
				t.Fatalf("a new snapshot of it differs (%v)", err)
			}
		})
	}
}

func readVersion1(t *testing.T, file string) (records []*pecanv1.Record, snapshot *pecanv1.Snapshot) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(unzipped)
	var messages [][]byte
	for {
		size, err := binary.ReadUvarint(reader)
		if err != nil {
			break
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(reader, message); err != nil {
			t.Fatal(err)
		}
		messages = append(messages, message)
	}
	for _, message := range messages[:len(messages)-1] {
		record := &pecanv1.Record{}
		if err := proto.Unmarshal(message, record); err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
	}
	snapshot = &pecanv1.Snapshot{}
	if err := proto.Unmarshal(messages[len(messages)-1], snapshot); err != nil {
		t.Fatal(err)
	}
	return records, snapshot
}

// isState compares a state with a snapshot of version 1, stream by stream.
func isState(t *testing.T, state *durable.State, snapshot *pecanv1.Snapshot) {
	t.Helper()
	now := proto.CloneOf(state.Snapshot())
	streams, elements := 0, uint64(0)
	for i, job := range snapshot.Jobs {
		for k, epoch := range job.Epochs {
			open := durable.FindEpoch(state.Job(job.JobId), epoch.Epoch)
			if open == nil || open.Total() != uint32(len(epoch.Streams)) {
				t.Fatalf("epoch %d of job %s is missing, or has other streams", epoch.Epoch, job.JobId)
			}
			delivered := uint32(0)
			for number, stream := range epoch.Streams {
				if got := open.Stream(uint32(number)); !proto.Equal(got, stream) && !open.Settled(uint32(number)) {
					t.Errorf("stream %d of epoch %d of job %s is\n%v\ninstead of\n%v", number, epoch.Epoch, job.JobId, got, stream)
				}
				if streams++; stream.Delivered {
					delivered++
					elements += stream.Count
				}
			}
			if open.DeliveredStreams() != delivered {
				t.Errorf("%d streams of epoch %d of job %s are delivered instead of %d", open.DeliveredStreams(), epoch.Epoch, job.JobId, delivered)
			}
			elements -= open.Elements()
			now.Jobs[i].Epochs[k] = epoch
		}
	}
	if elements != 0 || streams == 0 {
		t.Errorf("the delivered elements of %d streams differ by %d", streams, elements)
	}
	if !proto.Equal(now, snapshot) {
		t.Errorf("the state is\n%v\ninstead of\n%v", now, snapshot)
	}
}
