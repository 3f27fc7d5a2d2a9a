package core_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
)

// BenchmarkReplay applies the records of a busy life, from bytes, as a start does. One operation is one record.
func BenchmarkReplay(b *testing.B) {
	s := newSim(&testing.T{}, 1)
	for range 400 {
		s.step()
	}
	var data [][]byte
	for _, record := range s.records {
		bytes, err := proto.Marshal(record)
		if err != nil {
			b.Fatal(err)
		}
		data = append(data, bytes)
	}
	state := core.NewState()
	i := 0
	for b.Loop() {
		if i == len(data) {
			i, state = 0, core.NewState()
		}
		record := &pecanv1.Record{}
		if err := proto.Unmarshal(data[i], record); err != nil {
			b.Fatal(err)
		}
		if err := state.Apply(record); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
