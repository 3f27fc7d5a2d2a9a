package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// Listen listens on HOST:PORT (port 0 picks a free one), unix:PATH, or unix:@NAME (an abstract socket, for this user and root only). An
// address in use is an error that names it. It never sets SO_REUSEPORT, so that two processes cannot share a port by mistake.
func Listen(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return listenUnix(path)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: want HOST:PORT, unix:PATH or unix:@NAME: %w", address, err)
	}
	if port == "" {
		return nil, fmt.Errorf("listen on %q: the port is missing (0 picks a free one)", address)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: the port is in use by another process; stop that process or choose another port (0 picks a free one): %w", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}

func listenUnix(path string) (net.Listener, error) {
	if path == "" || path == "@" {
		return nil, errors.New("listen on unix socket: the path is empty; want unix:PATH or unix:@NAME")
	}
	listener, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && !strings.HasPrefix(path, "@") && abandoned(path) {
		// Nobody accepts connections on this socket: its process died without removing the file.
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on unix:%s: remove the abandoned socket: %w", path, err)
		}
		listener, err = net.Listen("unix", path)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on unix:%s: the address is in use by another process: %w", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on unix:%s: %w", path, err)
	}
	if strings.HasPrefix(path, "@") {
		return ownListener{listener}, nil
	}
	return listener, nil
}

// ownListener accepts connections of this process's user and of root only. Every user of the host sees the names of abstract
// sockets, which have no permissions.
type ownListener struct{ net.Listener }

// Accept implements net.Listener.
func (o ownListener) Accept() (net.Conn, error) {
	for {
		conn, err := o.Listener.Accept()
		if err != nil || isOwn(conn) {
			return conn, err
		}
		conn.Close()
	}
}

func isOwn(conn net.Conn) bool {
	unix, is := conn.(*net.UnixConn)
	if !is {
		return false
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return false
	}
	own := false
	err = raw.Control(func(fd uintptr) {
		peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		own = err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
	})
	return err == nil && own
}

// abandoned returns whether path is a socket on which nobody listens.
func abandoned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return false
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// Address returns a listener's address as clients give it: HOST:PORT or unix:PATH.
func Address(listener net.Listener) string {
	address := listener.Addr()
	if address.Network() == "unix" {
		return "unix:" + address.String()
	}
	return address.String()
}

// Announce prints the line from which a parent process or an operator learns the address.
func Announce(w io.Writer, address string) error {
	if _, err := fmt.Fprintf(w, "listening on %s\n", address); err != nil {
		return fmt.Errorf("print the listening line: %w", err)
	}
	return nil
}
