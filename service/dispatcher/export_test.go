package dispatcher

// StateHash tells two durable states apart.
func (d *Dispatcher) StateHash() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.State().Hash()
}

// Replay is replay for tests.
var Replay = replay
