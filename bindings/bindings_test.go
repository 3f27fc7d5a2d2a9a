package bindings

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pecan-ml/pecan/native/client"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parts parses the text of an error as Python does.
func parts(t *testing.T, err error) (code int, word reason.Reason, message string) {
	t.Helper()
	var text struct {
		Code    int           `json:"code"`
		Reason  reason.Reason `json:"reason"`
		Message string        `json:"message"`
	}
	if err == nil {
		t.Fatal("no error")
	}
	if e := json.Unmarshal([]byte(err.Error()), &text); e != nil {
		t.Fatalf("error %q is no JSON: %v", err, e)
	}
	return text.Code, text.Reason, text.Message
}

func TestErrorsHaveParts(t *testing.T) {
	cases := map[string]struct {
		call func() error
		code int
		word reason.Reason
	}{
		"no address": {func() error { _, err := Connect(`{"target": "nowhere"}`); return err }, 3, reason.BadArgument},
		"no JSON":    {func() error { _, err := Connect(`{`); return err }, 3, reason.BadArgument},
		"nobody listens": {func() error {
			_, err := Connect(`{"target": "127.0.0.1:1", "timeout_s": 0.2}`)
			return err
		}, 14, reason.Unavailable},
		"no graph":      {func() error { _, err := CheckGraph([]byte("no graph"), "{}"); return err }, 3, reason.GraphParse},
		"empty graph":   {func() error { _, err := CheckGraph(nil, "{}"); return err }, 3, reason.GraphParse},
		"stale session": {func() error { return Disconnect(1 << 40) }, 1, reason.Closed},
		"stale status":  {func() error { _, err := Status(0); return err }, 1, reason.Closed},
		"stale explain": {func() error { _, err := Explain(0, "j"); return err }, 1, reason.Closed},
		"stale job":     {func() error { _, err := CreateJob(0, `{}`, ``, nil, nil); return err }, 1, reason.Closed},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			code, word, message := parts(t, c.call())
			if code != c.code || word != c.word || message == "" {
				t.Errorf("code %d, reason %s, message %q; want %d, %s", code, word, message, c.code, c.word)
			}
		})
	}
}

func TestConnectKeepsItsTimeout(t *testing.T) {
	began := time.Now()
	if _, err := Connect(`{"target": "127.0.0.1:1", "timeout_s": 0.3}`); err == nil {
		t.Fatal("connected to nobody")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestRequestsBecomeOptions(t *testing.T) {
	seed := uint64(7)
	options, err := jobRequest{
		TargetWorkers: "local", Cache: "auto",
		Mode: "deterministic", Sharding: "file_or_data", Compression: "none", Seed: &seed, MaxElementBytes: 5, Order: "auto", OrderTolerance: "exact",
	}.options()
	if err != nil {
		t.Fatal(err)
	}
	if options.GetMode() != pecanv1.Mode_MODE_DETERMINISTIC || options.GetSharding() != pecanv1.Sharding_SHARDING_FILE_OR_DATA ||
		options.GetCompression() != pecanv1.Compression_COMPRESSION_NONE || !options.GetSeedSet() || options.GetSeed() != 7 || options.GetMaxElementBytes() != 5 ||
		options.GetTargetWorkers() != pecanv1.TargetWorkers_TARGET_WORKERS_LOCAL || options.GetOrder() != pecanv1.Order_ORDER_AUTO || options.GetOrderTolerance() != pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT ||
		options.GetCache() != pecanv1.Cache_CACHE_AUTO {
		t.Errorf("got %v", options)
	}
	for name, wrong := range map[string]jobRequest{
		"mode":        {Mode: "sometimes", Sharding: "off", Compression: "none"},
		"sharding":    {Mode: "off", Sharding: "sometimes", Compression: "none"},
		"compression": {Mode: "off", Sharding: "off", Compression: "sometimes"},
		"order":       {Mode: "off", Sharding: "off", Compression: "none", Order: "sometimes", OrderTolerance: "any"},
		"cache":       {Mode: "off", Sharding: "off", Compression: "none", Order: "off", OrderTolerance: "any", TargetWorkers: "unspecified", Cache: "sometimes"},
		"target":      {Mode: "off", Sharding: "off", Compression: "none", Order: "off", OrderTolerance: "any", Cache: "off", TargetWorkers: "sometimes"},
		"tolerance":   {Mode: "off", Sharding: "off", Compression: "none", Order: "off", OrderTolerance: "sometimes"},
	} {
		if _, err := wrong.options(); !reason.Is(err, reason.BadArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMessagesAreKeptUntilRead(t *testing.T) {
	kept := &messages{}
	log := slog.New(kept)
	log.Info("hidden")
	log.Warn("shown", "dispatcher", "a:1")
	log.Log(t.Context(), client.LevelNotice, "noticed")
	for range 2 * maxMessages {
		kept.warn("more")
	}
	lines := kept.take()
	if len(lines) != maxMessages || lines[0] != (message{"warning", "shown dispatcher=a:1"}) || lines[1] != (message{"info", "noticed"}) {
		t.Errorf("%d lines, the first %q", len(lines), lines[:2])
	}
	if left := kept.take(); len(left) != 0 {
		t.Errorf("still there: %v", left)
	}
}
