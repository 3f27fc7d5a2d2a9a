package client

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.uber.org/multierr"

	"github.com/pecan-ml/pecan/native/buffer"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
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
	_, err := parseTarget(c.Target)
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

// target is a parsed service address.
type target struct {
	// shown is what people gave, without the scheme.
	shown string
	// dial is the address as grpc-go wants it.
	dial string
}

func parseTarget(text string) (target, error) {
	bad := func(why string) (target, error) {
		return target{}, reason.New(reason.BadArgument, "service %q: %s; give \"host:port\", \"pecan://host:port\" or \"unix:@name\"", text, why)
	}
	if name, ok := strings.CutPrefix(text, "unix:"); ok {
		if len(name) < 2 || name[0] != '@' || len(name) > 100 {
			return bad("an abstract Unix socket has a name of 1 to 99 characters after the @")
		}
		return target{shown: text, dial: "unix-abstract:" + name[1:]}, nil
	}
	address := text
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		if scheme != "pecan" {
			return bad(fmt.Sprintf("unknown scheme %q", scheme))
		}
		address = strings.TrimSuffix(rest, "/")
	}
	if address == "" {
		return bad("it is empty")
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return bad(err.Error())
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return bad(fmt.Sprintf("port %q is not a number from 1 to 65535", port))
	}
	if host == "" || strings.ContainsAny(host, "/?#@ ") || strings.ContainsFunc(host, unicode.IsControl) {
		return bad(fmt.Sprintf("%q is not a host", host))
	}
	// grpc-go reads a URL, in which the % before an IPv6 zone is escaped.
	return target{shown: address, dial: "dns:///" + strings.ReplaceAll(address, "%", "%25")}, nil
}

// Protocol says how elements travel from a worker.
type Protocol string

// The protocols. Auto takes shared memory where a worker is on this host and the connect succeeds, TCP otherwise.
const (
	Auto Protocol = "auto"
	TCP  Protocol = "tcp"
	SHM  Protocol = "shm"
)

// IterOptions says how one iteration reads.
type IterOptions struct {
	// MaxOutstandingBytes bounds what has been asked for and not been taken, over all streams; each stream may hold one
	// element at least, however large. Default 256 MiB.
	MaxOutstandingBytes int64
	// Compression overrides the job's unless UNSPECIFIED.
	Compression pecanv1.Compression
	// Protocol defaults to Auto.
	Protocol Protocol
	// Deterministic takes the streams strictly in turn. A job of MODE_DETERMINISTIC does so anyway.
	Deterministic bool
	// Timeout is how long a Next waits for what is not there before it fails: a dispatcher that is away, or a worker, where
	// none is registered or none can be reached. However long a worker that is there takes is no outage. Default: the session's.
	Timeout time.Duration
	// NoAhead leaves it to Open to open the next pass, also where it could be opened ahead of need.
	NoAhead bool
	// Resume is where the iteration begins; nil at the start of an epoch.
	Resume *Resume

	// positions is told of every delivery; nil where nobody asks for it.
	positions *positions
}

// Resume is where an iteration goes on that was stopped.
type Resume struct {
	Position *pecanv1.Position
	// Passes of an outer repeat that are over, and elements of the iteration so far.
	Passes   uint64
	Elements uint64

	// fresh: the iteration has handed nothing out, and where nothing of its pass is left it begins at the next one.
	fresh bool
	// left by an iteration that had handed out nothing: no deliveries of others lead to it.
	left bool
}

// GetPosition is nil-safe.
func (r *Resume) GetPosition() *pecanv1.Position {
	if r == nil {
		return nil
	}
	return r.Position
}

// Validate reports every problem at once.
func (o IterOptions) Validate() error {
	var err error
	if o.MaxOutstandingBytes < 0 {
		err = multierr.Append(err, reason.New(reason.BadArgument, "max_outstanding_bytes of %d: give a number above 0, or 0 for %d", o.MaxOutstandingBytes, int64(DefaultMaxOutstandingBytes)))
	}
	switch o.Protocol {
	case "", Auto, TCP, SHM:
	default:
		err = multierr.Append(err, reason.New(reason.BadArgument, "data_transfer_protocol %q: give \"auto\", \"tcp\" or \"shm\"", string(o.Protocol)))
	}
	if _, known := pecanv1.Compression_name[int32(o.Compression)]; !known {
		err = multierr.Append(err, reason.New(reason.BadArgument, "compression %d is unknown", o.Compression))
	}
	if o.Timeout < 0 {
		err = multierr.Append(err, reason.New(reason.BadArgument, "dispatcher timeout of %v: give a duration above 0", o.Timeout))
	}
	return err
}
