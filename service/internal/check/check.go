// Package check refuses what flags and configurations give that cannot be right, by name and with an example.
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
	// MaxDuration bounds every duration. Sums of times and durations stay far from overflowing with it.
	MaxDuration = 10 * 365 * 24 * time.Hour
	// MaxBytes bounds every size, for the same reason: 1 PiB.
	MaxBytes = 1 << 50
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
	if n < least || n > MaxBytes {
		return fmt.Errorf("%s %d: want %d to %d bytes", flag, n, least, int64(MaxBytes))
	}
	return nil
}

// Dial refuses what cannot be connected to: neither HOST:PORT (with or without pecan:// before it) nor a Unix socket.
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

// Listen refuses what cannot be listened on. Without a host it is all interfaces, and port 0 picks a free one.
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

// Reachable refuses what others cannot connect to.
func Reachable(flag, address string) error {
	example := fmt.Sprintf("want the HOST:PORT by which others reach this process, as in %s worker-1.example:5051", flag)
	err := hostPort(address, true, 1)
	if err == nil {
		host, _, _ := net.SplitHostPort(address)
		if ip, parseErr := netip.ParseAddr(host); parseErr == nil && (ip.IsUnspecified() || ip.IsMulticast()) {
			err = fmt.Errorf("nobody can connect to %s", host)
		}
	}
	return wrap(flag, address, err, example)
}

// Target is an address as it is dialled: without the scheme.
func Target(address string) string { return strings.TrimPrefix(address, "pecan://") }

func wrap(flag, address string, err error, example string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %.200q: %w: %s", flag, address, err, example)
}

// socket tells whether an address is one of a Unix socket, and what is wrong with it.
func socket(address string) (bool, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	switch {
	case !ok:
		return false, nil
	case path == "" || path == "@":
		return true, fmt.Errorf("the name of the socket is missing")
	case len(path) > 107:
		return true, fmt.Errorf("the name of the socket has %d bytes, at most 107 are possible", len(path))
	case strings.ContainsRune(path, 0):
		return true, fmt.Errorf("the name of the socket has a NUL in it")
	}
	return true, nil
}

func hostPort(address string, needHost bool, leastPort int) error {
	if scheme, _, ok := strings.Cut(address, "://"); ok {
		return fmt.Errorf("%s:// is no scheme of Pecan's", scheme)
	}
	host, port, err := net.SplitHostPort(address)
	switch {
	case err != nil && !strings.Contains(address, ":"):
		return fmt.Errorf("the port is missing")
	case err != nil:
		return fmt.Errorf("it is no HOST:PORT")
	case needHost && host == "":
		return fmt.Errorf("the host is missing")
	case len(host) > 255 || strings.ContainsAny(host, " \t\r\n\x00/?#@,"):
		return fmt.Errorf("%.80q is no host", host)
	}
	if n, err := strconv.Atoi(port); err != nil || n < leastPort || n > 65535 || port[0] == '+' {
		return fmt.Errorf("port %.40q is not a number from %d to 65535", port, leastPort)
	}
	return nil
}
