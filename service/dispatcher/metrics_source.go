package dispatcher

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/store"
)

// metricsSource implements metrics.Source.
type metricsSource struct{ d *Dispatcher }

// StatusNow implements metrics.Source.
func (s metricsSource) StatusNow() *pecanv1.StatusResponse { return s.d.status() }

// StoreMetrics implements metrics.Source.
func (s metricsSource) StoreMetrics() store.Metrics { return s.d.deps.Store.Metrics() }

// DiskFull implements metrics.Source.
func (s metricsSource) DiskFull() bool {
	why, _ := s.d.diskGate.state()
	return why != nil
}
