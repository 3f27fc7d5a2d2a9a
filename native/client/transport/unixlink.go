package transport

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pecan-ml/pecan/proto/reason"
)

// unixLink is a Unix connection that collects the descriptors that arrive with the bytes.
type unixLink struct {
	*net.UnixConn
	files []*os.File
}

// Read implements io.Reader. Descriptors wait for their SLOT frames. The kernel never joins the bytes of two
// messages with descriptors, so one read has at most one message's descriptors.
func (l *unixLink) Read(p []byte) (int, error) {
	var control [256]byte
	n, oobn, flags, _, err := l.ReadMsgUnix(p, control[:])
	// ReadMsgUnix returns -1 on failure.
	n = max(n, 0)
	if oobn > 0 {
		if took := l.collect(control[:oobn]); took != nil && err == nil {
			err = took
		}
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = reason.New(reason.FrameCorrupt, "descriptors were lost: this process may have reached its limit of open files")
	}
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

func (l *unixLink) collect(control []byte) error {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return reason.New(reason.FrameCorrupt, "read descriptors: %w", err)
	}
	for i := range messages {
		descriptors, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range descriptors {
			l.files = append(l.files, os.NewFile(uintptr(fd), "pecan-slot"))
		}
	}
	return nil
}
