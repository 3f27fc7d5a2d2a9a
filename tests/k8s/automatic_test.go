package k8s_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// An element of trainer.py takes 0.4 s on a worker of one stream, so 8 workers give one in 0.05 s. With the prices below, an element
// costs (1 + 0.15 R) * max(step, 0.4 / R) with R workers. For a trainer with the fast step, 8 workers, the most, cost least, and 7
// cost 6.5 % more. For one with the slow step 2 cost least, 3 cost 11.5 % more, and 1 costs 26 % more. The policy takes a
// difference below 5 % for none. A busy host makes a step longer by 10 ms and more, so the fast one is far below 0.05 s.
const fastStep, slowStep = 0.03, 0.28

var automatic = []string{
	"--set", "image.registry=local", "--set", "workers.replicas=1", "--set", "workers.drainTimeoutSeconds=10", "--set", "workers.graceSeconds=10",
	"--set", "workers.args={--max-streams=1,--threads=1,--window-bytes=1048576}", "--set", "workers.resources.requests.cpu=1",
	"--set", "scaling.automatic.enabled=true", "--set", "scaling.automatic.idleSeconds=3",
	"--set-json", `dispatcher.prices={"currency":"USD","trainers":{"host":{"per_hour":1}},"workers":{"small":{"per_hour":0.15}}}`,
	"--set", "dispatcher.args={--decisions-log=/tmp/decisions}",
	"--set-json", `dispatcher.tenants={"tenants":{"default":{"max_slots":100}}}`,
}

// paceTrainer changes the seconds of a training step.
func (c *cluster) paceTrainer(step float64) {
	c.t.Helper()
	// The file may be read while it is written, so it is moved into its place.
	set := fmt.Sprintf("echo %g > /tmp/next && mv -f /tmp/next /tmp/step", step)
	until(c.t, fmt.Sprintf("the trainer has steps of %g s", step), func() error {
		out, err := c.inPod(c.trainerPod(), "sh", "-c", set)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// trainerPod is the name of the trainer's pod. The API server may be absent.
func (c *cluster) trainerPod() string {
	c.kubelet.mutex.Lock()
	defer c.kubelet.mutex.Unlock()
	for _, r := range c.kubelet.pods {
		if strings.HasPrefix(r.name, "trainer-") {
			return r.name
		}
	}
	return ""
}

// moreElements waits until the trainer has taken further elements.
func (c *cluster) moreElements(n int, when string) {
	c.t.Helper()
	taken := func() int { return strings.Count(c.said("trainer", 1<<24), "element ") }
	before := taken()
	until(c.t, fmt.Sprintf("the trainer takes %d elements %s", n, when), func() error {
		c.epochs()
		if now := taken(); now < before+n {
			return fmt.Errorf("%d of %d elements", now-before, n)
		}
		return nil
	})
}

// decided waits until the dispatcher asks for this many workers, because the search of the only job has ended with this number.
func (c *cluster) decided(want int) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("the dispatcher has decided on %d workers", want), func() error {
		s, err := c.status()
		switch {
		case err != nil:
			return err
		case len(s.Jobs) != 1 || s.Jobs[0].Placement == nil || s.Provider == nil:
			return fmt.Errorf("%d jobs, or no decision", len(s.Jobs))
		}
		if p := s.Jobs[0].Placement; p.Remote != want || !p.Converged || s.Provider.Desired != want {
			return fmt.Errorf("%d desired, %+v", s.Provider.Desired, *p)
		}
		return nil
	})
}

// The dispatcher starts and stops the workers by its own decisions. Nobody else changes their number.
func TestTheDispatcherScalesItsWorkers(t *testing.T) {
	c := start(t, "64")
	c.showLogs()
	c.makeVolume("state")
	c.helm(append([]string{"install", "pecan", chart(), "-n", space, "--create-namespace", "--wait", "--timeout", "4m"}, automatic...)...)
	c.workersAre(1)

	t.Log("a fast trainer gets 8 workers")
	c.startTrainer("cost")
	c.paceTrainer(fastStep)
	c.moreElements(1, "with one worker")
	started := time.Now()
	c.decided(8)
	c.workersAre(8)
	t.Logf("from 1 to 8 workers in %.1f s", time.Since(started).Seconds())
	if out, err := c.scale(3); err == nil || !strings.Contains(out, "for workers itself") {
		t.Errorf("pecanctl scale beside a dispatcher that scales: %v: %s", err, out)
	}
	shown, err := c.inPod("pecan-dispatcher-0", "pecanctl", "status", "--dispatcher", "pecan-dispatcher:5050")
	if err != nil || !strings.Contains(shown, "kubernetes:deployment/pecan-worker") {
		t.Errorf("%v: %s", err, shown)
	}
	t.Logf("status:\n%s", shown)

	t.Log("the API server is absent when the trainer becomes slow")
	c.stopAPI()
	started = time.Now()
	c.paceTrainer(slowStep)
	c.decided(2)
	t.Logf("from 8 to 2 workers decided in %.1f s", time.Since(started).Seconds())
	until(t, "the status says that the provider cannot be asked", func() error {
		if s, err := c.status(); err != nil || s.Provider.Error == "" {
			return fmt.Errorf("%+v, %w", s.Provider, err)
		}
		return nil
	})
	c.moreElements(20, "without an API server")
	c.startAPI()
	c.workersAre(2)
	c.moreElements(20, "with two workers")

	t.Log("a worker's pod is evicted, and another one comes")
	evicted := c.podsOf("worker")[0]
	c.evict(evicted)
	c.moreElements(20, "after the eviction")
	c.workersAre(2)
	c.gone(evicted)

	t.Log("the dispatcher is killed, and then its pod is replaced")
	c.killIn("pecan-dispatcher-0")
	c.moreElements(20, "after the death of the dispatcher")
	c.replaceDispatcher()
	c.moreElements(20, "after the replacement of the dispatcher")
	c.decided(2)
	c.workersAre(2)

	t.Log("the next dispatcher decides too: the trainer is fast again")
	started = time.Now()
	c.paceTrainer(fastStep)
	c.decided(8)
	c.workersAre(8)
	t.Logf("from 2 to 8 workers in %.1f s", time.Since(started).Seconds())

	t.Log("the trainer ends, and the fewest workers stay")
	c.paceTrainer(0)
	c.endTrainer()
	c.workersAre(1)
	if log := c.said("pecan-dispatcher-0", 1<<24); !strings.Contains(log, "worker asked to leave") {
		t.Error("no worker was asked to leave")
	}
	c.uninstall()
}
