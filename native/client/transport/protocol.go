package transport

// Protocol says how elements travel from a worker.
type Protocol string

// The protocols. Auto takes shared memory where a worker is on this host and the connect succeeds, TCP otherwise.
const (
	Auto Protocol = "auto"
	TCP  Protocol = "tcp"
	SHM  Protocol = "shm"
)
