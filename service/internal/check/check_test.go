package check

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestAddressesAreAcceptedOrRefused(t *testing.T) {
	dial := func(a string) error { return Dial("--flag", a) }
	listen := func(a string) error { return Listen("--flag", a, false) }
	listenUnix := func(a string) error { return Listen("--flag", a, true) }
	reachable := func(a string) error { return Reachable("--flag", a) }
	good := map[string]struct {
		check     func(string) error
		addresses []string
	}{
		"dial":        {dial, []string{"h:1", "10.0.0.1:65535", "[::1]:5050", "pecan://h:5050", "unix:/run/p", "unix:@p"}},
		"listen":      {listen, []string{":0", "0.0.0.0:0", "h:5050", "[::]:1"}},
		"listen unix": {listenUnix, []string{"h:0", "unix:/run/p", "unix:@p"}},
		"reachable":   {reachable, []string{"h:1", "127.0.0.1:5", "[fe80::1]:5"}},
	}
	for name, c := range good {
		for _, address := range c.addresses {
			if err := c.check(address); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	bad := map[string]struct {
		check func(string) error
		// addresses has each address with a part of its error.
		addresses map[string]string
	}{
		"dial": {dial, map[string]string{
			"": "missing", "nope": "port is missing", ":0": "host is missing", ":5": "host is missing", "h:0": "port \"0\"",
			"h:70000": "65535", "h:-1": "65535", "h:http": "not a number", "h:": "not a number", "h:+5": "not a number",
			"http://h:1": "http://", "grpc://h:1": "grpc://", "a:b:c": "not HOST:PORT", "::1": "not HOST:PORT", "h h:1": "not a host", "h/x:1": "not a host",
			"unix:": "name of the socket", "unix:@": "name of the socket", "unix:/" + strings.Repeat("x", 200): "at most 107",
		}},
		"listen": {listen, map[string]string{
			"": "port is missing", "nowhere": "port is missing", "h:70000": "65535", "unix:/p": "not a number", "tcp://h:1": "tcp://",
		}},
		"listen unix": {listenUnix, map[string]string{"unix:": "name of the socket", "h": "port is missing"}},
		"reachable": {reachable, map[string]string{
			"h": "port is missing", "h:0": "port \"0\"", ":5": "host is missing", "0.0.0.0:5": "nobody can connect", "[::]:5": "nobody can connect",
			"unix:@p": "not a number", "224.0.0.1:5": "nobody can connect",
		}},
	}
	for name, c := range bad {
		for address, want := range c.addresses {
			err := c.check(address)
			if err == nil {
				t.Errorf("%s %q was taken", name, address)
				continue
			}
			if text := err.Error(); !strings.Contains(text, want) || !strings.Contains(text, "--flag") || !strings.Contains(text, "as in --flag") {
				t.Errorf("%s %q: %v, want %q", name, address, err, want)
			}
		}
	}
}

func TestDurationsAndSizesOutsideTheirBoundsAreRefused(t *testing.T) {
	for _, c := range []struct {
		d, least time.Duration
		ok       bool
	}{
		{time.Second, 1, true}, {0, 0, true}, {MaxDuration, 1, true}, {0, 1, false}, {-1, 0, false}, {math.MinInt64, 0, false},
		{math.MaxInt64, 0, false}, {MaxDuration + 1, 1, false}, {time.Millisecond, time.Second, false},
	} {
		if err := Duration("--flag", c.d, c.least); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "--flag") {
			t.Errorf("%v, at least %v: %v", c.d, c.least, err)
		}
	}
	for _, c := range []struct {
		n, least int64
		ok       bool
	}{{1, 1, true}, {0, 0, true}, {maxBytes, 1, true}, {0, 1, false}, {-1, 0, false}, {math.MaxInt64, 0, false}, {math.MinInt64, 0, false}} {
		if err := Bytes("--flag", c.n, c.least); (err == nil) != c.ok {
			t.Errorf("%d, at least %d: %v", c.n, c.least, err)
		}
	}
}
