package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pecan-ml/pecan/service/store"
)

// Damage of any stored byte is detected or has no effect on the content.
func TestDamageIsNeverReadAsData(t *testing.T) {
	dir := t.TempDir()
	s := open(t, store.Options{Dir: dir})
	for i := range 50 {
		appendAll(t, s, fmt.Sprint("r", i+1))
	}
	if err := s.Compact([]byte("50")); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		appendAll(t, s, fmt.Sprint("r", i+51))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if damaged(t, dir) == 0 {
		t.Fatal("no damage was found anywhere")
	}
	// A second opening moves the records of the logs into tables, which have another format.
	if err := open(t, store.Options{Dir: dir}).Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables to damage: %v", err)
	}
	for _, table := range tables {
		if damagedFile(t, dir, table, 20) == 0 {
			t.Errorf("no damage of %s was found", table)
		}
	}
}

// damaged damages each file of a store in three places, and returns how often the store detected it.
func damaged(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		found += damagedFile(t, dir, file, 3)
	}
	return found
}

func damagedFile(t *testing.T, dir, file string, places int) int {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	found := 0
	for place := range min(places, len(data)) {
		flipped := slices.Clone(data)
		flipped[len(data)*(place+1)/(places+1)] ^= 0x40
		overwrite(t, file, flipped)
		if readDamaged(t, dir) {
			found++
		}
		overwrite(t, file, data)
	}
	return found
}

// readDamaged reports whether reading failed. The test fails if the reading returned other data than was written.
func readDamaged(t *testing.T, dir string) bool {
	t.Helper()
	s, err := openSoon(t, store.Options{Dir: copyDir(t, dir)})
	if err != nil {
		if !errors.Is(err, store.ErrDamaged) {
			t.Errorf("damage: unexpected error %v", err)
		}
		return true
	}
	defer s.Close()
	var snapshot string
	var records []string
	err = s.Load(func(data []byte) error { snapshot = string(data); return nil },
		func(data []byte) error { records = append(records, string(data)); return nil })
	if err != nil {
		if !errors.Is(err, store.ErrDamaged) {
			t.Errorf("damage: unexpected error while loading %v", err)
		}
		return true
	}
	for i, record := range rebuild(snapshot, records) {
		if record != fmt.Sprint("r", i+1) {
			t.Fatalf("record %d is %q", i+1, record)
		}
	}
	return false
}

func overwrite(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
