package monitor

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestThePageSaysHowTheProcessIs(t *testing.T) {
	var logged bytes.Buffer
	var broken atomic.Bool
	stop, err := Start("127.0.0.1:0", New(), func() error {
		if broken.Load() {
			return errors.New("the store failed")
		}
		return nil
	}, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	url := regexp.MustCompile(`http://[0-9.:]+`).FindString(logged.String())
	if code, body := get(t, url+"/metrics"); code != 200 || !strings.Contains(body, "process_resident_memory_bytes") {
		t.Errorf("metrics: %d\n%s", code, body)
	}
	if code, body := get(t, url+"/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("health: %d %s", code, body)
	}
	if code, body := get(t, url+"/readyz"); code != 200 || body != "ready\n" {
		t.Errorf("readiness: %d %s", code, body)
	}
	broken.Store(true)
	if code, body := get(t, url+"/readyz"); code != 503 || !strings.Contains(body, "the store failed") {
		t.Errorf("readiness of a broken process: %d %s", code, body)
	}
	if code, _ := get(t, url+"/debug/pprof/"); code != 404 {
		t.Errorf("profiles are served: %d", code)
	}
}

func TestWithoutAnAddressThereIsNoPage(t *testing.T) {
	stop, err := Start("", New(), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stop()
}

func TestAWrongAddressIsRefused(t *testing.T) {
	for address, want := range map[string]string{"localhost": "port is missing", "http://h:1": "not a supported scheme", "h:70000": "65535"} {
		if err := Validate(address); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--metrics-listen") {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := Validate(""); err != nil {
		t.Error(err)
	}
}
