package bindings

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

func TestTheSizeOfListedFilesIsKnownOnlyIfAllAreFiles(t *testing.T) {
	dir := t.TempDir()
	var names [][]byte
	for i := range maxStats + 10 {
		path := filepath.Join(dir, fmt.Sprint(i))
		if i < 5 || i%2 == 0 {
			if err := os.WriteFile(path, make([]byte, 100), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		names = append(names, []byte(path))
	}
	later := time.Now().Add(time.Hour)
	if n := listedBytes(names[:5], later); n != 500 {
		t.Errorf("5 files of 100 bytes have %d", n)
	}
	if n := listedBytes(names, later); n != 100*int64(len(names)) {
		t.Errorf("of a long list every second file stands for two: %d bytes", n)
	}
	for name, list := range map[string][][]byte{
		"a missing file": names[:9], "a directory": {[]byte(dir)}, "a remote file": {[]byte("gs://bucket/file")}, "no names": nil,
	} {
		if n := listedBytes(list, later); n != 0 {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
	if n := listedBytes(names[:5], time.Now().Add(-time.Second)); n != 0 {
		t.Errorf("after the deadline: %d bytes", n)
	}
	if n := listedBytes(names[:5], time.Time{}); n != 500 {
		t.Errorf("5 files of 100 bytes have %d without a deadline", n)
	}
}

// recordFile writes an uncompressed record file, and returns its name.
func recordFile(t *testing.T, records, length int) string {
	t.Helper()
	masked := func(b []byte) uint32 {
		sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		return (sum>>15 | sum<<17) + 0xa282ead8
	}
	data := bytes.Repeat([]byte{7}, length)
	record := binary.LittleEndian.AppendUint64(nil, uint64(length))
	record = binary.LittleEndian.AppendUint32(record, masked(record))
	record = binary.LittleEndian.AppendUint32(append(record, data...), masked(data))
	name := filepath.Join(t.TempDir(), "file.tfrecord")
	if err := os.WriteFile(name, bytes.Repeat(record, records), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTheRecordsOfListedFilesAreEstimatedFromSamples(t *testing.T) {
	long := recordFile(t, 300, 10_000-16)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, bytes.Repeat([]byte("text\n"), 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	many := []string{text}
	for range 99 {
		many = append(many, long)
	}
	for name, c := range map[string]struct {
		files []string
		want  int64
	}{
		"one file":              {[]string{long}, 300},
		"equal files":           {[]string{long, long, long, long, long, long, long}, 2100},
		"empty files":           {[]string{recordFile(t, 0, 0), recordFile(t, 0, 0), long, long}, 600},
		"one empty file":        {[]string{recordFile(t, 0, 0)}, 0},
		"another format":        {[]string{text}, 0},
		"a file without sample": {many, 99 * 300},
		"a missing file":        {[]string{long, "/missing"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := listing(t, c.files, nil)
			size, n := fileSizes(g, time.Time{})
			if again, same := fileSizes(g, time.Time{}); again != size || same != n {
				t.Errorf("%d records in %d bytes, and then %d in %d", n, size, same, again)
			}
			if n != c.want {
				t.Errorf("%d records in %d bytes, want %d", n, size, c.want)
			}
			if late, n := fileSizes(g, time.Now().Add(-time.Second)); late != 0 || n != 0 {
				t.Errorf("after the deadline: %d records in %d bytes", n, late)
			}
		})
	}
}

// The steps of a dataset may read one list and not the other.
func TestTheRecordsOfTwoListsAreNotKnown(t *testing.T) {
	long := recordFile(t, 300, 10_000-16)
	if size, n := fileSizes(listing(t, []string{long}, []string{long, long}), time.Time{}); size != 3*300*10_000 || n != 0 {
		t.Errorf("%d records in %d bytes", n, size)
	}
}

// The number of streams of a deterministic job follows from the sizes, so they may not depend on the speed of a disk.
func TestOnlyDeterministicJobsWaitForSizes(t *testing.T) {
	if d := sizesDeadline(pecanv1.Mode_MODE_DETERMINISTIC); !d.IsZero() {
		t.Errorf("a deterministic job waits until %v", d)
	}
	if d := time.Until(sizesDeadline(pecanv1.Mode_MODE_EXACTLY_ONCE)); d < 0 || d > statsTimeout {
		t.Errorf("other jobs wait for %v", d)
	}
}

// listing returns a graph of the test data that reads record files, with other files. It names more files in a second list.
func listing(t *testing.T, files, more []string) *graph.Graph {
	t.Helper()
	list := func(name string, files []string) *tf.NodeDef {
		names := &tf.TensorProto{Dtype: tf.DataType_DT_STRING, TensorShape: nodedef.Shape(int64(len(files)))}
		for _, file := range files {
			names.StringVal = append(names.StringVal, []byte(file))
		}
		return nodedef.Const(name, names)
	}
	data, err := os.ReadFile("../service/graph/testdata/records.pb")
	if err != nil {
		t.Fatal(err)
	}
	var def tf.GraphDef
	if err := proto.Unmarshal(data, &def); err != nil {
		t.Fatal(err)
	}
	for _, n := range def.GetNode() {
		if names, ok := nodedef.Strings(n); ok && len(names) == 8 {
			n.Attr = list("", files).GetAttr()
		}
	}
	if more != nil {
		def.Node = append(def.Node, list("more", more))
	}
	if data, err = proto.Marshal(&def); err != nil {
		t.Fatal(err)
	}
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}
