package validate

import (
	"math"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestImpossibleSubWindowsAreDropped(t *testing.T) {
	good := func(number uint64) *pecanv1.SubWindow {
		return &pecanv1.SubWindow{Number: number, AgeS: 0.5, Seconds: 0.5, Elements: 10, WaitedS: 0.25, Queue: 4}
	}
	with := func(change func(*pecanv1.SubWindow)) *pecanv1.SubWindow {
		s := good(2)
		change(s)
		return s
	}
	for name, bad := range map[string]*pecanv1.SubWindow{
		"absent":            nil,
		"a repeated number": good(1),
		"no elements":       with(func(s *pecanv1.SubWindow) { s.Elements = 0 }),
		"no time":           with(func(s *pecanv1.SubWindow) { s.Seconds = 0 }),
		"a negative time":   with(func(s *pecanv1.SubWindow) { s.Seconds = -1 }),
		"no number":         with(func(s *pecanv1.SubWindow) { s.Seconds = math.NaN() }),
		"infinite":          with(func(s *pecanv1.SubWindow) { s.Seconds = math.Inf(1) }),
		"from the future":   with(func(s *pecanv1.SubWindow) { s.AgeS = -1 }),
		"no age":            with(func(s *pecanv1.SubWindow) { s.AgeS = math.NaN() }),
	} {
		h := &pecanv1.ClientHeartbeatRequest{SubWindows: []*pecanv1.SubWindow{good(1), bad, good(3)}}
		if CleanConsumer(h); len(h.SubWindows) != 2 || h.SubWindows[0].Number != 1 || h.SubWindows[1].Number != 3 {
			t.Errorf("%s: %v is kept", name, h.SubWindows)
		}
	}
	h := &pecanv1.ClientHeartbeatRequest{HostId: strings.Repeat("h", 1<<20), SubWindows: []*pecanv1.SubWindow{with(func(s *pecanv1.SubWindow) { s.WaitedS, s.Queue = 7, math.NaN() })}}
	if CleanConsumer(h); h.SubWindows[0].WaitedS != 0.5 || h.SubWindows[0].Queue != 0 || len(h.HostId) > maxTextBytes+3 {
		t.Errorf("a wait of 7 s in 0.5 s is %v, a host id has %d bytes", h.SubWindows[0], len(h.HostId))
	}
	for _, paused := range []float64{-1e9, -1e300, math.NaN(), math.Inf(1), 1e300, 1e9} {
		h := &pecanv1.ClientHeartbeatRequest{SubWindows: []*pecanv1.SubWindow{with(func(s *pecanv1.SubWindow) { s.PausedS = paused })}}
		if CleanConsumer(h); !(h.SubWindows[0].PausedS >= 0 && h.SubWindows[0].PausedS <= maxSubWindow) {
			t.Errorf("a pause of %v s is %v", paused, h.SubWindows[0].PausedS)
		}
	}
	for n := range uint64(1000) {
		h.SubWindows = append(h.SubWindows, good(n+3))
	}
	if CleanConsumer(h); len(h.SubWindows) != maxSubWindows || h.SubWindows[maxSubWindows-1].Number != 1002 {
		t.Errorf("%d sub-windows are kept", len(h.SubWindows))
	}
}

func TestImpossibleTotalsAndLoadsAreRepaired(t *testing.T) {
	nan := math.NaN()
	h := &pecanv1.WorkerHeartbeat{UptimeS: nan, ComputedS: -1, BlockedS: math.Inf(1), CpuS: nan, Host: &pecanv1.HostLoad{
		HostId: strings.Repeat("h", 1<<20), Cores: -4, Load: nan, Pressure: 7, Memory: math.Inf(-1), NetworkBytesS: -3,
	}}
	CleanHeartbeat(h)
	if h.UptimeS != 0 || h.ComputedS != 0 || h.BlockedS != 0 || h.CpuS != 0 {
		t.Errorf("the totals are %v", h)
	}
	if host := h.Host; len(host.HostId) > maxTextBytes+3 || host.Cores != 0 || host.Load != 0 || host.Pressure != 1 || host.Memory != 0 || host.NetworkBytesS != 0 {
		t.Errorf("the load of the host is %v", host)
	}
}
