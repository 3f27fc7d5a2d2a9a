package identity

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync/atomic"
)

// Identity is who a worker is: its id, which changes when it joins another cluster, and its addresses.
type Identity struct {
	// Readers on other hosts reach the worker at Address. This process reaches itself at LocalAddress. Both are set
	// before the data plane accepts connections.
	Address, LocalAddress string

	id, cluster atomic.Pointer[string]
}

// New makes a worker that no cluster knows.
func New() *Identity {
	i := new(Identity)
	i.Renew()
	return i
}

// Renew makes this a worker that no cluster knows.
func (i *Identity) Renew() {
	var b [8]byte
	// crypto/rand never fails.
	_, _ = rand.Read(b[:])
	id, none := hex.EncodeToString(b[:]), ""
	i.id.Store(&id)
	i.cluster.Store(&none)
}

// ID returns the worker's id.
func (i *Identity) ID() string { return *i.id.Load() }

// Cluster returns the worker's cluster; empty before its first welcome.
func (i *Identity) Cluster() string { return *i.cluster.Load() }

// Join makes the worker a member of a cluster.
func (i *Identity) Join(cluster string) { i.cluster.Store(&cluster) }

// String names the worker for people: its id and its address.
func (i *Identity) String() string { return fmt.Sprintf("%s (%s)", i.ID(), i.Address) }
