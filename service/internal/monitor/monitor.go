// Package monitor serves the metrics of a process in Prometheus' format, its health and its readiness over HTTP.
package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pecan-ml/pecan/service/internal/check"
	"github.com/pecan-ml/pecan/service/internal/cli"
)

// Usage is the help text of the flag --metrics-listen.
const Usage = "HOST:PORT for /metrics, /healthz and /readyz over HTTP (port 0 picks a free one); empty: not served"

// mostAtOnce bounds the number of concurrent scrapes, because each reads the whole state.
const mostAtOnce = 4

// New returns a registry with metrics of the process and of the Go runtime.
func New() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Validate checks the value of the flag --metrics-listen.
func Validate(address string) error {
	if address == "" {
		return nil
	}
	return check.Listen("--metrics-listen", address, false)
}

// Start serves until stop is called. With an empty address it does nothing. ready returns nil, or why the process is not ready.
func Start(address string, registry *prometheus.Registry, ready func() error, log *slog.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	listener, err := cli.Listen(address)
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w", err)
	}
	server := &http.Server{
		Handler: handler(registry, ready, log), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	log.Info("the program serves metrics", "url", "http://"+listener.Addr().String()+"/metrics")
	warnIfPublic(listener, log)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close()
		}
		<-done
	}, nil
}

// warnIfPublic logs a warning if other hosts can read the metrics, because they contain names of jobs.
func warnIfPublic(listener net.Listener, log *slog.Logger) {
	if address, ok := listener.Addr().(*net.TCPAddr); ok && !address.IP.IsLoopback() {
		log.Warn("other hosts can read the metrics, which contain names of jobs", "listen", address.String())
	}
}

func handler(registry *prometheus.Registry, ready func() error, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: mostAtOnce, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}
