package bindings

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
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
}
