// Package monitor is the page that every server of Pecan has for those who watch it: metrics in Prometheus' form, whether the process lives, and
// whether it is ready.
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

// Usage is what the flag --metrics-listen says of itself.
const Usage = "HOST:PORT for /metrics, /healthz and /readyz over HTTP (port 0 picks a free one); without it there are none"

// mostAtOnce bounds how many scrapes are served at a time; each looks at everything there is.
const mostAtOnce = 4

// New makes a registry that knows the process itself.
func New() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Validate tells what is wrong with the flag.
func Validate(address string) error {
	if address == "" {
		return nil
	}
	return check.Listen("--metrics-listen", address, false)
}

// Start serves the page until stop is called; an empty address is none. ready gives why the process is not ready, or nil.
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
	log.Info("metrics", "url", "http://"+listener.Addr().String()+"/metrics")
	warnOfStrangers(listener, log)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close()
		}
		<-done
	}, nil
}

// warnOfStrangers says that names of jobs can be read by whoever reaches the port.
func warnOfStrangers(listener net.Listener, log *slog.Logger) {
	if address, ok := listener.Addr().(*net.TCPAddr); ok && !address.IP.IsLoopback() {
		log.Warn("metrics are served to every host that reaches this one, names of jobs among them", "listen", address.String())
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
