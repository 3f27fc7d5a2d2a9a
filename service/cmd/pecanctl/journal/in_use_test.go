package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/service/store"
)

// holdEnv makes the test's program a process that has the store of a directory, until its standard input ends.
const holdEnv = "PECAN_TEST_HOLD"

func TestMain(m *testing.M) {
	dir := os.Getenv(holdEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	s, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		panic(err)
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Close()
}

// waitForCleaning waits until the store has removed the files of the process before. It removes them in the background.
func waitForCleaning(t *testing.T, dir string) {
	t.Helper()
	left := func() (names []string) {
		for _, pattern := range []string{"OPTIONS-*", "*.log"} {
			files, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			if len(files) > 1 {
				names = append(names, files...)
			}
		}
		return names
	}
	for end := time.Now().Add(time.Minute); len(left()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the store does not remove %v", left())
		}
	}
}

func TestAStoreInUseIsRefusedAndNotChanged(t *testing.T) {
	dir := work(t, history(), 0)
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), holdEnv+"="+dir)
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("%q %v", line, err)
	}
	waitForCleaning(t, dir)
	before := stamps(t, dir)
	for _, word := range []string{"check", "inspect"} {
		_, err := ask(t, Options{}, word, dir)
		var unchecked Unchecked
		if !errors.As(err, &unchecked) || !strings.Contains(err.Error(), dir+" is in use by a running dispatcher") {
			t.Errorf("%s of a store in use: %v", word, err)
		}
	}
	if after := stamps(t, dir); after != before {
		t.Errorf("the directory was changed from\n%s to\n%s", before, after)
	}
	stdin.Close()
	if err := holder.Wait(); err != nil {
		t.Fatal(err)
	}
	if text, err := ask(t, Options{}, "check", dir); err != nil {
		t.Errorf("when it is free again: %v\n%s", err, text)
	}
}
