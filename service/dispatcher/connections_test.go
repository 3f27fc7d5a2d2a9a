package dispatcher

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

func TestConnectionsAboveTheLimitAreClosed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &boundedListener{Listener: listener, most: 1}
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			conn, err := b.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	dial()
	first := <-accepted
	second := dial()
	if err := second.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the second connection stays: %v", err)
	}
	first.Close()
	first.Close()
	dial()
	third := <-accepted
	third.Close()
	listener.Close()
	for range accepted {
	}
}
