package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fillStderr is the variable of the child of TestNativeMessagesDoNotWaitForAReader.
const fillStderr = "PECAN_TEST_FILL_STDERR"

// fill writes to standard error as native code does, until a pipe is full.
func fill() error {
	if err := unblockStderr(); err != nil {
		return err
	}
	message := []byte("native message\n")
	for range 1 << 20 / len(message) {
		if _, err := syscall.Write(stderrFd, message); errors.Is(err, syscall.EAGAIN) {
			// The log goes on, too.
			fmt.Fprintln(Stderr, "a line of the log")
			return nil
		} else if err != nil {
			return err
		}
	}
	return errors.New("the pipe is never full")
}

func TestNativeMessagesDoNotWaitForAReader(t *testing.T) {
	if os.Getenv(fillStderr) != "" {
		if err := fill(); err != nil {
			t.Fatal(err)
		}
		fmt.Println("filled")
		Stderr.Flush(30 * time.Second)
		return
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	child := exec.Command(os.Args[0], "-test.run", t.Name()+"$")
	child.Env, child.Stderr = append(os.Environ(), fillStderr+"=1"), writer
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Process.Kill()
	said := make(chan string, 1)
	go func() {
		first := make([]byte, len("filled"))
		n, _ := io.ReadFull(out, first)
		said <- string(first[:n])
	}()
	select {
	case first := <-said:
		if first != "filled" {
			t.Errorf("the child says %q", first)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the child waits for the reader of its standard error")
	}
	// The pipe of others still waits.
	if flags, _, failed := syscall.Syscall(syscall.SYS_FCNTL, writer.Fd(), syscall.F_GETFL, 0); failed != 0 || flags&syscall.O_NONBLOCK != 0 {
		t.Errorf("the pipe's open file has the flags %x (%v)", flags, failed)
	}
	writer.Close()
	log, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
	if !strings.HasSuffix(string(log), "a line of the log\n") {
		t.Errorf("the log ends with %q", string(log[max(0, len(log)-100):]))
	}
}
