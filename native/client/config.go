package client

import (
	"context"
	"log/slog"
	"net"
	"time"

	"go.uber.org/multierr"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Defaults of Config and IterOptions.
const (
	DefaultTimeout             = 10 * time.Second
	DefaultMaxOutstandingBytes = 256 << 20
	defaultHeartbeat           = time.Second
	defaultPingAfter           = 3 * time.Second
)

// Config says how to reach a dispatcher.
type Config struct {
	// Target is "host:port", "pecan://host:port" or "unix:@name" (an abstract Unix socket).
	Target string
	// Timeout bounds every wait for the dispatcher: connecting, and, when nothing else flows, an outage. Default 10 s.
	Timeout time.Duration
	// Heartbeat is how often the session shows that it is alive. Default: 1 s, less when the dispatcher asks for it.
	Heartbeat time.Duration
	// Version is this build's version, for messages.
	Version string
	// Host names the trainer's host in the dispatcher's status. Default: the host's name.
	Host string
	// HostID decides whether a worker is on this host; empty takes package hostid's.
	HostID string
	// Pool holds the elements. Empty: the session makes one and closes it.
	Pool *buffer.Pool
	// Logger receives what people may want to know. Empty: nothing is logged.
	Logger *slog.Logger
	// Dial reaches the dispatcher and workers. Empty: over the network of this host.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// pingAfter is how long a connection may be silent before it is asked whether it lives; after three such times it
	// is given up. Default 3 s.
	pingAfter time.Duration
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	_, err := control.ParseTarget(c.Target)
	if c.Timeout < 0 {
		err = multierr.Append(err, reason.New(reason.BadArgument, "dispatcher timeout of %v: give a duration above 0, or 0 for %v", c.Timeout, DefaultTimeout))
	}
	if c.Heartbeat < 0 {
		err = multierr.Append(err, reason.New(reason.BadArgument, "heartbeat every %v: give a duration above 0, or 0 for %v", c.Heartbeat, defaultHeartbeat))
	}
	return err
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.pingAfter == 0 {
		c.pingAfter = defaultPingAfter
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
