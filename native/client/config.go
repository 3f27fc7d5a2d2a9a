package client

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Defaults of Config and IterOptions.
const (
	defaultTimeout             = 10 * time.Second
	defaultMaxOutstandingBytes = 256 << 20
	defaultHeartbeat           = time.Second
	defaultPingAfter           = 3 * time.Second
)

// Config says how to reach a dispatcher.
type Config struct {
	// Target is "host:port", "pecan://host:port" or "unix:@name" (an abstract Unix socket).
	Target string
	// Timeout limits every wait for the dispatcher: the wait to connect and, when no elements arrive, the
	// wait for the end of an outage. Default 10 s.
	Timeout time.Duration
	// Heartbeat is the interval of heartbeats. The default is 1 s, or less when the dispatcher's client
	// timeout requires it.
	Heartbeat time.Duration
	// Version is this build's version, for messages.
	Version string
	// Host names the trainer's host in the dispatcher's status. The default is the host's name.
	Host string
	// HostID decides whether a worker is on this host. If it is empty, the value of package hostid counts.
	HostID string
	// TrainerID names this process. The local workers that it starts declare it. It is empty if the process starts none.
	TrainerID string
	// Pool holds the elements. If it is nil, the session creates a pool and closes it.
	Pool *buffer.Pool
	// Logger receives messages for people. If it is nil, nothing is logged.
	Logger *slog.Logger
	// Dial connects to the dispatcher and to workers. If it is nil, the network of this host is used.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// pingAfter is how long a connection may be silent before the client sends a ping. After three such
	// periods the client closes the connection. Default 3 s.
	pingAfter time.Duration
}

// Validate reports all problems at once.
func (c Config) Validate() error {
	_, err := control.ParseTarget(c.Target)
	if c.Timeout < 0 {
		err = errors.Join(err, reason.New(reason.BadArgument, "dispatcher timeout of %v: give a duration above 0, or 0 for %v", c.Timeout, defaultTimeout))
	}
	if c.Heartbeat < 0 {
		err = errors.Join(err, reason.New(reason.BadArgument, "heartbeat every %v: give a duration above 0, or 0 for %v", c.Heartbeat, defaultHeartbeat))
	}
	return err
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
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
