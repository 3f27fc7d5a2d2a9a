package dispatcher

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/store"
)

// metricsSource implements metrics.Source.
type metricsSource struct{ d *Dispatcher }

// StatusNow implements metrics.Source.
func (s metricsSource) StatusNow() *pecanv1.StatusResponse { return s.d.status() }

// StoreFigures implements metrics.Source.
func (s metricsSource) StoreFigures() store.Figures { return s.d.deps.Store.Figures() }

// DiskFull implements metrics.Source.
func (s metricsSource) DiskFull() bool {
	why, _ := s.d.diskGate.state()
	return why != nil
}
