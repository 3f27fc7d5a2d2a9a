package core_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// FuzzApply feeds a state with arbitrary records. The state refuses or applies them, and never breaks. A snapshot
// restores what it applied.
func FuzzApply(f *testing.F) {
	s := newSim(&testing.T{}, 2)
	for range 200 {
		s.step()
	}
	var journal bytes.Buffer
	for i, record := range s.records {
		if _, err := protodelim.MarshalTo(&journal, record); err != nil {
			f.Fatal(err)
		}
		if i%20 == 19 {
			f.Add(bytes.Clone(journal.Bytes()))
		}
	}
	for _, file := range []string{"order_adopted.txt", "order_pilot_restart.txt", "learned.txt"} {
		ordered := newScript(&testing.T{})
		ordered.runFile(file)
		journal.Reset()
		for _, record := range ordered.records {
			if _, err := protodelim.MarshalTo(&journal, record); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(bytes.Clone(journal.Bytes()))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		state := durable.NewState()
		reader := bytes.NewReader(data)
		for {
			record := &pecanv1.Record{}
			if protodelim.UnmarshalFrom(reader, record) != nil {
				break
			}
			before, applied := state.Hash(), state.Applied()
			if state.Apply(proto.Clone(record).(*pecanv1.Record)) != nil && (state.Hash() != before || state.Applied() != applied) {
				t.Fatalf("a refused record changed the state: %v", record)
			}
		}
		snapshot, err := state.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		restored, err := durable.Restore(snapshot)
		if err != nil || restored.Hash() != state.Hash() {
			t.Fatalf("restored state differs (%v)", err)
		}
	})
}
