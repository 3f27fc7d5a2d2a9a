package simnet_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

const a, b = "10.0.0.1", "10.0.0.2"

// joined returns both ends of a connection from a to b.
func joined(t *testing.T, n *simnet.Net) (here, there net.Conn) {
	t.Helper()
	listener, err := n.Host(b).Listen("tcp", b+":80")
	if err != nil {
		t.Fatal(err)
	}
	if here, err = n.Host(a).Dial(t.Context(), "tcp", b+":80"); err != nil {
		t.Fatal(err)
	}
	if there, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	return here, there
}

func inBubble(t *testing.T, test func(t *testing.T, n *simnet.Net)) {
	synctest.Test(t, func(t *testing.T) { test(t, simnet.New(rand.New(rand.NewPCG(1, 1)))) })
}

func read(t *testing.T, c net.Conn, n int) string {
	t.Helper()
	p := make([]byte, n)
	if _, err := io.ReadFull(c, p); err != nil {
		t.Fatal(err)
	}
	return string(p)
}

func TestSentBytesArriveBeforeTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, n *simnet.Net) {
		here, there := joined(t, n)
		_, _ = here.Write([]byte("hello"))
		here.Close()
		if got := read(t, there, 5); got != "hello" {
			t.Fatal(got)
		}
		if _, err := there.Read(make([]byte, 1)); err != io.EOF {
			t.Fatal(err)
		}
		there.Close()
		if n.Open() != 0 {
			t.Fatal("connections are open")
		}
	})
}

func TestWhatWasLostArrivesWhenTheLinkHeals(t *testing.T) {
	inBubble(t, func(t *testing.T, n *simnet.Net) {
		here, there := joined(t, n)
		n.Lose(a, b, true)
		_, _ = here.Write([]byte("late"))
		_ = there.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := there.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		n.Lose(a, b, false)
		_ = there.SetReadDeadline(time.Time{})
		if got := read(t, there, 4); got != "late" || n.Hits()[simnet.Loss] == 0 {
			t.Fatal(got, n.Hits())
		}
	})
}

func TestLosingOneDirectionKeepsTheOtherOne(t *testing.T) {
	inBubble(t, func(t *testing.T, n *simnet.Net) {
		here, there := joined(t, n)
		n.Lose(b, a, true)
		_, _ = here.Write([]byte("x"))
		read(t, there, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := n.Host(a).Dial(ctx, "tcp", b+":80"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	})
}

func TestAConnectionIsCutInTheMiddleOfAWrite(t *testing.T) {
	inBubble(t, func(t *testing.T, n *simnet.Net) {
		here, there := joined(t, n)
		n.CutAfter(a, b, 3)
		if wrote, err := here.Write([]byte("hello")); wrote != 3 || !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(wrote, err)
		}
		if got := read(t, there, 3); got != "hel" {
			t.Fatal(got)
		}
		if _, err := there.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
	})
}

func TestAKilledProcessResetsAndAHostWithoutPowerIsSilent(t *testing.T) {
	inBubble(t, func(t *testing.T, n *simnet.Net) {
		here, _ := joined(t, n)
		n.Host(b).Kill()
		if _, err := here.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
		if _, err := n.Host(a).Dial(t.Context(), "tcp", b+":80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatal(err)
		}
		n.Host(b).Start()
		here, _ = joined(t, n)
		n.Host(b).PowerOff()
		_ = here.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := here.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		// The host is back and does not know the connection.
		n.Host(b).Start()
		if _, err := here.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Fatal(err)
		}
	})
}

func TestAFlippedBitArrives(t *testing.T) {
	inBubble(t, func(t *testing.T, n *simnet.Net) {
		here, there := joined(t, n)
		n.FlipAfter(a, b, 2)
		_, _ = here.Write([]byte("aaaa"))
		if got := read(t, there, 4); got == "aaaa" || got[:2] != "aa" || got[3] != 'a' {
			t.Fatal(got)
		}
	})
}

func TestAPausedProcessReadsWhatCameMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, n *simnet.Net) {
		here, there := joined(t, n)
		n.Host(b).Pause(true)
		_, _ = here.Write([]byte("x"))
		time.AfterFunc(time.Minute, func() { n.Host(b).Pause(false) })
		began := time.Now()
		if read(t, there, 1); time.Since(began) < time.Minute {
			t.Fatal("read while it was paused")
		}
	})
}
