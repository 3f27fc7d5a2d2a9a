// Package check validates values of flags and configurations. Its errors name the flag and give an example.
package check

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxDuration bounds every duration, so that sums of times and durations cannot overflow.
	MaxDuration = 10 * 365 * 24 * time.Hour
	// maxBytes bounds every size for the same reason: 1 PiB.
	maxBytes = 1 << 50
)

// Duration refuses durations below least and above MaxDuration.
func Duration(flag string, d, least time.Duration) error {
	switch {
	case d < least && least <= 1:
		return fmt.Errorf("%s %v: must be %s, as in %s 30s", flag, d, map[bool]string{true: "positive", false: "0 or more"}[least > 0], flag)
	case d < least:
		return fmt.Errorf("%s %v: must be at least %v", flag, d, least)
	case d > MaxDuration:
		return fmt.Errorf("%s %v: must be at most %v (ten years)", flag, d, MaxDuration)
	}
	return nil
}

// Bytes refuses sizes below least and above MaxBytes.
func Bytes(flag string, n, least int64) error {
	if n < least || n > maxBytes {
		return fmt.Errorf("%s %d: want %d to %d bytes", flag, n, least, int64(maxBytes))
	}
	return nil
}

// Dial checks an address to connect to: HOST:PORT, pecan://HOST:PORT or a Unix socket.
func Dial(flag, address string) error {
	example := fmt.Sprintf("give HOST:PORT, unix:PATH or unix:@NAME, as in %s 10.0.0.5:5050", flag)
	if address == "" {
		return fmt.Errorf("%s is missing: %s", flag, example)
	}
	if unix, err := socket(address); unix {
		return wrap(flag, address, err, example)
	}
	return wrap(flag, address, hostPort(strings.TrimPrefix(address, "pecan://"), true, 1), example)
}

// Listen checks an address to listen on. An empty host means all interfaces, and port 0 a free port.
func Listen(flag, address string, unix bool) error {
	example := fmt.Sprintf("want HOST:PORT (port 0 picks a free one), as in %s 0.0.0.0:5050", flag)
	if unix {
		example = fmt.Sprintf("want HOST:PORT (port 0 picks a free one), unix:PATH or unix:@NAME, as in %s 0.0.0.0:5050", flag)
		if is, err := socket(address); is {
			return wrap(flag, address, err, example)
		}
	}
	return wrap(flag, address, hostPort(address, false, 0), example)
}

// Reachable checks an address to which other processes connect.
func Reachable(flag, address string) error {
	example := fmt.Sprintf("want the HOST:PORT at which other hosts reach this process, as in %s worker-1.example:5051", flag)
	err := hostPort(address, true, 1)
	if err == nil {
		host, _, _ := net.SplitHostPort(address)
		if ip, parseErr := netip.ParseAddr(host); parseErr == nil && (ip.IsUnspecified() || ip.IsMulticast()) {
			err = fmt.Errorf("nobody can connect to %s", host)
		}
	}
	return wrap(flag, address, err, example)
}

// Target returns an address without the scheme, as it is dialled.
func Target(address string) string { return strings.TrimPrefix(address, "pecan://") }

func wrap(flag, address string, err error, example string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %.200q: %w: %s", flag, address, err, example)
}

// socket returns whether an address is a Unix socket, and an error if it is invalid.
func socket(address string) (bool, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	switch {
	case !ok:
		return false, nil
	case path == "" || path == "@":
		return true, fmt.Errorf("the name of the socket is missing")
	case len(path) > 107:
		return true, fmt.Errorf("the name of the socket has %d bytes, at most 107 are allowed", len(path))
	case strings.ContainsRune(path, 0):
		return true, fmt.Errorf("the name of the socket contains a NUL")
	}
	return true, nil
}

func hostPort(address string, needHost bool, leastPort int) error {
	if scheme, _, ok := strings.Cut(address, "://"); ok {
		return fmt.Errorf("%s:// is not a supported scheme", scheme)
	}
	host, port, err := net.SplitHostPort(address)
	switch {
	case err != nil && !strings.Contains(address, ":"):
		return fmt.Errorf("the port is missing")
	case err != nil:
		return fmt.Errorf("it is not HOST:PORT")
	case needHost && host == "":
		return fmt.Errorf("the host is missing")
	case len(host) > 255 || strings.ContainsAny(host, " \t\r\n\x00/?#@,"):
		return fmt.Errorf("%.80q is not a host", host)
	}
	if n, err := strconv.Atoi(port); err != nil || n < leastPort || n > 65535 || port[0] == '+' {
		return fmt.Errorf("port %.40q is not a number from %d to 65535", port, leastPort)
	}
	return nil
}
