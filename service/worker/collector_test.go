package worker

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetricsKeepToPrometheusRules(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(startWorker(t, nil)))
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	if n, err := testutil.GatherAndCount(registry); err != nil || n < 12 {
		t.Errorf("%d samples (%v)", n, err)
	}
}
