package cli

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

const stderrFd = 2

// unblockStderr makes file descriptor 2 non-blocking if it is a pipe. TensorFlow's code writes to it directly. If the pipe is full
// because nobody reads it, that code loses the message instead of waiting forever. Other processes may share the open file, so the
// descriptor gets an open file of its own. Stderr keeps the earlier one, and waits in its own goroutine.
func unblockStderr() error {
	var stat syscall.Stat_t
	if err := syscall.Fstat(stderrFd, &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		// It is closed, or it is not a pipe and never fills up.
		return nil
	}
	own, err := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", stderrFd), syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		// The pipe has no reader, or belongs to another user. Native code then waits for a reader, and no operator can change
		// that, so there is no message.
		return nil
	}
	defer syscall.Close(own)
	earlier, _, failed := syscall.Syscall(syscall.SYS_FCNTL, stderrFd, syscall.F_DUPFD_CLOEXEC, 0)
	if failed != 0 {
		return fmt.Errorf("copy its descriptor: %w", failed)
	}
	if err := syscall.Dup3(own, stderrFd, 0); err != nil {
		return errors.Join(fmt.Errorf("replace its descriptor: %w", err), syscall.Close(int(earlier)))
	}
	Stderr.to = os.NewFile(earlier, "stderr")
	return nil
}
