package provision

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// killGrace is added to the drain timeout, for TensorFlow's steps to end.
	killGrace = 6 * time.Second
	// crashPause is the time after the early end of a child in which no other one is started.
	crashPause = 10 * time.Second
	earlyEnd   = 5 * time.Second
)

// Local runs workers as child processes on this host. They end with this process.
type Local struct {
	program string
	args    []string
	most    int
	drain   time.Duration
	rules   rules
	log     *slog.Logger

	// mutex protects the fields below, which the goroutines of children write.
	mutex    sync.Mutex
	children map[int]*child
	started  int
	desired  int
	failed   time.Time
	why      string
	ended    sync.WaitGroup
}

type child struct {
	machine
	command *exec.Cmd
	stdin   io.Closer
	stop    *time.Timer
}

// NewLocal returns the provider of child processes. It starts none.
func NewLocal(o Options) (*Local, error) {
	if o.WorkerProgram == "" || o.Dispatcher == "" {
		return nil, errors.New("workers as child processes need the path of the program and the address of the dispatcher")
	}
	return &Local{
		program: o.WorkerProgram, args: append([]string{"--dispatcher", o.Dispatcher}, o.WorkerArgs...), most: o.MostLocal,
		drain: cmp.Or(o.DrainTimeout, 5*time.Second), rules: rules{patience: cmp.Or(o.Patience, DefaultPatience)},
		log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), children: map[int]*child{},
	}, nil
}

// Observe counts the child processes.
func (l *Local) Observe(context.Context) (State, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return describe(l.observe(), l.desired, nil, time.Now(), l.rules), nil
}

// Reconcile starts processes, and sends SIGTERM to those that leave.
func (l *Local) Reconcile(_ context.Context, desired int, leaving []Address) (State, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.desired = desired
	now := time.Now()
	o := l.observe()
	possible := desired
	if l.most > 0 {
		possible = min(desired, l.most)
	}
	act := plan(o, possible, leaving, now, l.rules)
	for _, name := range act.drop {
		l.terminate(name)
	}
	active := len(slices.DeleteFunc(l.observe().machines, func(m machine) bool { return m.phase == ending }))
	var err error
	for ; active < act.replicas && now.Sub(l.failed) > crashPause && err == nil; active++ {
		err = l.start()
	}
	o = l.observe()
	o.replicas = desired
	o.refused = l.refusal(desired, now)
	s := describe(o, desired, leaving, now, l.rules)
	s.Why = cmp.Or(s.Why, act.why)
	return s, err
}

func (l *Local) refusal(desired int, now time.Time) string {
	switch {
	case now.Sub(l.failed) <= crashPause:
		return l.why
	case l.most > 0 && desired > l.most:
		return fmt.Sprintf("at most %d workers run on this host", l.most)
	}
	return ""
}

// Close stops all child processes and waits for them.
func (l *Local) Close() error {
	l.mutex.Lock()
	for _, c := range l.children {
		l.terminate(c.name)
	}
	l.mutex.Unlock()
	l.ended.Wait()
	return nil
}

func (l *Local) observe() observed {
	o := observed{replicas: l.desired}
	for _, c := range l.children {
		o.machines = append(o.machines, c.machine)
	}
	slices.SortFunc(o.machines, func(a, b machine) int { return a.ordinal - b.ordinal })
	return o
}

func (l *Local) start() error {
	c := &child{command: exec.Command(l.program, append(slices.Clone(l.args), "--exit-with-parent")...)}
	c.command.Stderr = os.Stderr
	// A signal from the terminal reaches this process only, which then stops the workers.
	c.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := c.command.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := c.command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.command.Start(); err != nil {
		l.failed, l.why = time.Now(), oneLine(err.Error())
		return fmt.Errorf("start a worker: %w", err)
	}
	l.started++
	c.stdin = stdin
	c.machine = machine{name: fmt.Sprintf("process %d", c.command.Process.Pid), created: time.Now(), ordinal: l.started}
	l.children[c.ordinal] = c
	l.ended.Go(func() { l.readOutput(c, stdout) })
	return nil
}

// readOutput reads what a child prints, until it ends.
func (l *Local) readOutput(c *child, stdout io.Reader) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if address, found := strings.CutPrefix(lines.Text(), "listening on "); found {
			l.mutex.Lock()
			if c.phase == pending {
				c.phase = ready
			}
			c.hosts = []string{address}
			l.mutex.Unlock()
		}
	}
	err := c.command.Wait()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if c.stop != nil {
		c.stop.Stop()
	}
	c.stdin.Close()
	delete(l.children, c.ordinal)
	if c.phase == ending {
		return
	}
	if err == nil && c.phase == ready {
		// It was asked to leave.
		l.log.Info("a worker ended", "worker", c.name)
		return
	}
	l.log.Warn("a worker ended by itself", "worker", c.name, "error", err)
	if time.Since(c.created) < earlyEnd {
		lived := time.Since(c.created).Round(time.Millisecond)
		l.failed, l.why = time.Now(), fmt.Sprintf("a worker ended %s after its start: %v", lived, err)
	}
}

// terminate asks a child to leave, and kills it if it does not.
func (l *Local) terminate(name string) {
	for _, c := range l.children {
		if c.name != name || c.phase == ending {
			continue
		}
		c.phase = ending
		_ = c.command.Process.Signal(syscall.SIGTERM)
		c.stop = time.AfterFunc(l.drain+killGrace, func() { _ = c.command.Process.Kill() })
	}
}
