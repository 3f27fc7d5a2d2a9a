package dispatcher_test

import (
	"sync"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// A status visits everything, and decisions wait for it. However many are asked for at once, one is made at a time.
func TestManyCallsShareOneStatus(t *testing.T) {
	const calls = 50
	s := startService(t, serviceOptions{})
	release := s.d.Hold()
	var answered sync.WaitGroup
	ask := func() {
		answered.Go(func() {
			if status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{}); err != nil || status.ClusterId == "" {
				t.Errorf("status %v, %v", status, err)
			}
		})
	}
	until := func(made, waiting int) {
		t.Helper()
		for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
			m, w := s.d.Statuses()
			if m == made && w == waiting {
				return
			}
			if time.Now().After(end) {
				release()
				t.Fatalf("%d statuses were made and %d calls wait, want %d and %d", m, w, made, waiting)
			}
		}
	}
	ask()
	until(1, 0)
	// These calls come after the first status began, so they get another one.
	for range calls {
		ask()
	}
	until(1, calls)
	release()
	answered.Wait()
	until(2, 0)
}
