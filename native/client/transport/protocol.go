package transport

// Protocol is how elements travel from a worker.
type Protocol string

// Auto uses shared memory if the worker is on this host and the connection succeeds, and TCP otherwise.
const (
	Auto Protocol = "auto"
	TCP  Protocol = "tcp"
	SHM  Protocol = "shm"
)
