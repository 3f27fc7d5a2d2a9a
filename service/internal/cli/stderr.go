package cli

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

const stderrFd = 2

// unblockStderr lets native code lose a message that a pipe without a reader has no room for, instead of waiting for ever: code of
// TensorFlow writes to file descriptor 2 itself. The flag belongs to an open file that other processes may share, so the
// descriptor gets an open file of its own. Stderr keeps the earlier one, and waits in its own goroutine.
func unblockStderr() error {
	var stat syscall.Stat_t
	if err := syscall.Fstat(stderrFd, &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		// It is closed, or nothing that fills up.
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
