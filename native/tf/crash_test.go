package tf_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/pecan-ml/pecan/native/tf"
)

// tests/faults/test_poison.py tests crashes of native code.
func TestGoPanicsAndExternalSignalsAreNotReportedAsCrashes(t *testing.T) {
	if os.Getenv("PECAN_CRASH_CHILD") != "" {
		crashChild()
	}
	for _, signal := range []syscall.Signal{syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGTERM} {
		child := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), "PECAN_CRASH_CHILD=1")
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		var said []string
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said = append(said, lines.Text())
			if lines.Text() == "ready" {
				if err := child.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
			}
		}
		err = child.Wait()
		if words := strings.Join(said, " "); words != "recovered ready" || err == nil {
			t.Errorf("%v: the child said %q and ended with %v", signal, words, err)
		}
	}
}

func crashChild() {
	if _, err := tf.OnCrash(func(cause string) { fmt.Println("reported", cause) }); err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	func() {
		defer func() {
			if recover() != nil {
				fmt.Println("recovered")
			}
		}()
		var none *[4]int
		none[len(os.Args)%4]++
	}()
	fmt.Println("ready")
	select {}
}
