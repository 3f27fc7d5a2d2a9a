package hostload

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestTheKernelsFilesAreRead(t *testing.T) {
	if n, ok := parseRunnable("0.20 0.18 0.12 3/80 11206\n"); n != 3 || !ok {
		t.Errorf("%v runnable threads, %v", n, ok)
	}
	if s, known := parseStalled("some avg10=9.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"); s != 2.5 || !known {
		t.Errorf("%v seconds stalled, known %v", s, known)
	}
	if m := parseMemory("MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:   250 kB\n"); m != 0.75 {
		t.Errorf("%v of the memory is used", m)
	}
	text := "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n" +
		"    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n  eth0:1000 5 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
	if b := parseBytes(text); b != 1200 {
		t.Errorf("%v bytes", b)
	}
	for _, broken := range []string{"", "\n", "some", "some total=x", "a b c d", "eth0: 1 2 3", "MemTotal: x kB"} {
		_, runs := parseRunnable(broken)
		_, known := parseStalled(broken)
		if runs || known || parseMemory(broken) != 0 || parseBytes(broken) != 0 {
			t.Errorf("%q gives figures", broken)
		}
	}
}

func TestAReportCoversTheTimeSinceTheLastOne(t *testing.T) {
	root := t.TempDir() + "/"
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(root+name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("loadavg", "0 0 0 5/80 1")
	write("pressure/cpu", "some avg10=0 avg60=0 avg300=0 total=1000000")
	write("net/dev", "eth0: 1000 0 0 0 0 0 0 0 0 0")
	s := &Sampler{hostID: "h", root: root, at: time.Now().Add(-2 * time.Second)}
	s.network = s.bytes()
	s.pressure, _ = s.stalled()
	if s.Report() != nil {
		t.Error("a report without a sample")
	}
	s.sample()
	write("loadavg", "0 0 0 9/80 1")
	s.sample()
	write("pressure/cpu", "some avg10=0 avg60=0 avg300=0 total=2000000")
	write("net/dev", "eth0: 5000 0 0 0 0 0 0 0 2000 0")
	got := s.Report()
	near := func(value, want float64) bool { return math.Abs(value-want) <= want/10 }
	if got.GetHostId() != "h" || got.GetCores() != int32(runtime.NumCPU()) || !near(got.GetLoad()*float64(runtime.NumCPU()), 6) || !near(got.GetPressure(), 0.5) || !got.GetPressureKnown() || !near(got.GetNetworkBytesS(), 3000) {
		t.Errorf("the report is %v", got)
	}
	if again := s.Report(); again != got {
		t.Errorf("the next report at once is %v", again)
	}
	if none := New("").Report(); none != nil {
		t.Errorf("a host without an id reports %v", none)
	}
}

func TestABusyProcessorIsSeen(t *testing.T) {
	s := New("h")
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { s.Run(ctx) })
	for range 4 * runtime.NumCPU() {
		done.Go(func() {
			for ctx.Err() == nil {
				_ = 0
			}
		})
	}
	time.Sleep(2 * time.Second)
	got := s.Report()
	cancel()
	done.Wait()
	// Go runs as many threads as there are processors. The sampler's own thread is one of them and does not count.
	if n := float64(runtime.NumCPU()); got.GetLoad() < 0.6*(n-1)/n {
		t.Errorf("a busy host has a load of %v", got.GetLoad())
	}
}
