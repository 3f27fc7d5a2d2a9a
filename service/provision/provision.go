package provision

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
)

// Address is the address that a worker advertises, as HOST:PORT. Providers find the machine of a worker by its host, and
// those that run several workers on one host by the whole address.
type Address string

// Provider starts and stops the remote workers of one service. Calls are made one at a time.
type Provider interface {
	// Reconcile moves the workers towards desired, not counting those in leaving, which it removes. leaving is the whole
	// list at each call: a worker that is no longer in it stays, unless its removal has begun. The state is that after
	// the call. If the provider cannot be asked, the state is the last known one, and the error says why.
	Reconcile(ctx context.Context, desired int, leaving []Address) (State, error)
	// Observe returns the state and changes nothing.
	Observe(ctx context.Context) (State, error)
	// Close releases what the provider holds. Child processes end; other workers stay.
	Close() error
}

// State counts a provider's workers. Requested, Pending, Ready and Leaving exclude each other.
type State struct {
	// Desired is the number of workers that the provider was last asked for, without those that leave.
	Desired int
	// Requested workers do not exist yet.
	Requested int
	// Pending workers exist and are not ready.
	Pending int
	// Ready workers can run streams, as far as the provider knows.
	Ready int
	// Leaving are the workers that are to leave or are ending, by host or address.
	Leaving []Address
	// Stuck counts the requested and pending workers that cannot be counted on: the provider refuses them, or has
	// not given them in time. Why says the reason in one line.
	Stuck int
	Why   string
	// Removable lists the ready workers, by host or address. If Ordered, only the first of them can be removed, and
	// then the next.
	Removable []Address
	Ordered   bool
}

// Expected is the number of workers that can be counted on soon.
func (s State) Expected() int { return s.Requested + s.Pending + s.Ready - s.Stuck }

// Same reports whether two addresses name the same worker. One that has no port names the worker of a whole host.
func (a Address) Same(b Address) bool {
	hostA, portA := a.split()
	hostB, portB := b.split()
	return hostA == hostB && (portA == portB || portA == "" || portB == "")
}

func (a Address) split() (host, port string) {
	host, port, err := net.SplitHostPort(string(a))
	if err != nil {
		return string(a), ""
	}
	return host, port
}

func (s State) String() string {
	line := fmt.Sprintf("%d desired: %d ready, %d pending, %d requested, %d leaving", s.Desired, s.Ready, s.Pending, s.Requested, len(s.Leaving))
	if s.Stuck > 0 {
		line += fmt.Sprintf(", %d stuck", s.Stuck)
	}
	if s.Why != "" {
		line += ": " + s.Why
	}
	return line
}

// Options are what Open needs besides the name of the provider.
type Options struct {
	// Registered counts the registered workers, for a static pool.
	Registered func() int
	// Dispatcher is the address that child processes connect to.
	Dispatcher string
	// WorkerProgram is the program of child processes, and WorkerArgs are their further flags.
	WorkerProgram string
	WorkerArgs    []string
	// MostLocal bounds the number of child processes.
	MostLocal int
	// DrainTimeout is how long a child process may take to leave. After it and a grace time, it is killed.
	DrainTimeout time.Duration
	// Kubeconfig is a file with the address of a Kubernetes cluster. If empty, the usual places are tried, and then the
	// cluster that this process runs in.
	Kubeconfig string
	// Patience is the time after which a worker that is not ready counts as stuck.
	Patience time.Duration
	Log      *slog.Logger
}

// DefaultPatience is enough for a new virtual machine and the download of an image.
const DefaultPatience = 3 * time.Minute

// workloads are the ones that Kubernetes can scale for us.
const workloads = "kubernetes:deployment/NAME or kubernetes:statefulset/NAME"

// Usage describes the value that Open takes.
const Usage = "what starts and stops workers: static (nobody; whoever registers is used), local (child processes), or " +
	workloads + ", with .NAMESPACE if it is not that of the dispatcher"

// Open returns the provider that a flag names: static, local, kubernetes:deployment/NAME or kubernetes:statefulset/NAME. The
// last two take .NAMESPACE if it is not the one of the process or of the kubeconfig.
func Open(name string, o Options) (Provider, error) {
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	kind, rest, _ := strings.Cut(name, ":")
	switch {
	case name == "static":
		return newStatic(o.Registered), nil
	case name == "local":
		return NewLocal(o)
	case kind == "kubernetes":
		return openKubernetes(rest, o)
	}
	return nil, fmt.Errorf("the provider of workers is %q: use static, local, %s", name, workloads)
}
