package cache

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// mostWait is how long a caller waits for a call of the host's file system.
	mostWait = 3 * time.Second
	// longer and restFor are factors. Calls that make files durable, close or rename them, or list the directory may take
	// longer × the wait. They take long even on a healthy file system. The pause after a call that took too long is
	// restFor × the wait.
	longer, restFor = 10, 3
	// pieceBytes is how much is read before its checksum is computed. It is still in the processor's cache then.
	pieceBytes = 256 << 10
	// mostUnanswered is the number of calls from which on few are made. Each holds a thread of this process while a mount hangs.
	// mostDoubled is how many times the pause between them doubles at most: to 23 days.
	mostUnanswered, mostDoubled = 32, 16
)

// ErrNoAnswer is the error of a call that takes too long. A call that is not made because of an earlier one has it too. So does the
// reading of a segment if the directory cannot even be listed.
var ErrNoAnswer = errors.New("the cache directory does not answer")

// patience bounds the time for which a caller waits for a file system: wait, or ten times as long for lists and for calls that make
// something durable. A call that takes longer goes on alone, and its result is
// not used. For a while after it, calls fail at once: streams compute, and do not wait one after the other. While many calls are not
// answered, one call is made from time to time. If it is answered, another mount has replaced the one that hangs.
type patience struct {
	fs   FileSystem
	wait time.Duration

	mu           sync.Mutex
	restingUntil time.Time
	// unanswered counts the calls that go on alone. old are those of a mount that was replaced.
	unanswered, old int
}

// resting returns ErrNoAnswer for a while after a call that took too long. While many calls take too long, it lets one call pass and
// begins the next such time.
func (p *patience) resting() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.restingUntil) {
		return fmt.Errorf("%w in time: %d calls take too long", ErrNoAnswer, p.unanswered)
	}
	if p.full() {
		p.rest()
	}
	return nil
}

// full returns whether so many calls go on alone that few more are made. The caller holds mu.
func (p *patience) full() bool { return p.unanswered-p.old >= mostUnanswered }

// rest begins a time without calls. While many calls take too long, it grows with each, so that they do not become too many: the next one
// is as far away as the first of them. The caller holds mu.
func (p *patience) rest() {
	pause := restFor * p.wait
	if p.full() {
		pause = longer * p.wait << min(p.unanswered-p.old-mostUnanswered, mostDoubled)
	}
	p.restingUntil = time.Now().Add(pause)
}

// answered notes that a call was answered in time.
func (p *patience) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full() {
		p.old, p.restingUntil = p.unanswered, time.Time{}
	}
}

// alone waits for the end of a call in the background.
func (p *patience) alone(wait func()) {
	p.mu.Lock()
	p.unanswered++
	p.mu.Unlock()
	go func() {
		wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.full() {
			p.restingUntil = time.Time{}
		}
		p.unanswered--
		p.old = min(p.old, p.unanswered)
	}()
}

// within makes a call, and returns ErrNoAnswer if it takes longer than most. late takes the result of such a call.
func within[T any](p *patience, most time.Duration, what string, call func() (T, error), late func(T)) (result T, err error) {
	if err := p.resting(); err != nil {
		return result, err
	}
	return await(p, most, what, call, late)
}

// await makes a call even while the file system rests.
func await[T any](p *patience, most time.Duration, what string, call func() (T, error), late func(T)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		result, err := call()
		answers <- answer{result, err}
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case a := <-answers:
		p.answered()
		return a.result, a.err
	case <-timer.C:
	}
	// A process that was stopped and continued finds both.
	select {
	case a := <-answers:
		return a.result, a.err
	case <-time.After(most / 10):
	}
	p.alone(func() {
		if a := <-answers; a.err == nil && late != nil {
			late(a.result)
		}
	})
	p.mu.Lock()
	p.rest()
	p.mu.Unlock()
	return result, fmt.Errorf("%w in time: %s takes longer than %v", ErrNoAnswer, what, most)
}

// only makes a call that returns nothing but an error.
func (p *patience) only(most time.Duration, what string, call func() error) error {
	_, err := within(p, most, what, func() (struct{}, error) { return struct{}{}, call() }, nil)
	return err
}

// Create creates a file. One that is created too late is removed.
func (p *patience) Create(name string) (File, error) {
	file, err := within(p, p.wait, "creating a file", func() (File, error) { return p.fs.Create(name) }, func(file File) {
		_ = file.Close()
		_ = p.fs.Remove(name)
	})
	if err != nil {
		return nil, err
	}
	return &patientFile{file, p}, nil
}

// Open opens a file for reading and returns its size.
func (p *patience) Open(name string) (*patientReadable, int64, error) {
	type opened struct {
		file Readable
		size int64
	}
	o, err := within(p, p.wait, "opening a file", func() (opened, error) {
		file, size, err := p.fs.Open(name)
		return opened{file, size}, err
	}, func(o opened) { _ = o.file.Close() })
	if err != nil {
		return nil, 0, err
	}
	return &patientReadable{o.file, p}, o.size, nil
}

// Rename renames a file. A mounted bucket copies it.
func (p *patience) Rename(from, to string) error {
	return p.only(longer*p.wait, "renaming a file", func() error { return p.fs.Rename(from, to) })
}

// Remove deletes a file. It is asked also while the file system rests. A file that stays is collected later.
func (p *patience) Remove(name string) error {
	if resting := p.resting(); resting != nil {
		p.mu.Lock()
		full := p.full()
		p.mu.Unlock()
		if full {
			return resting
		}
		p.alone(func() { _ = p.fs.Remove(name) })
		return nil
	}
	return p.only(p.wait, "removing a file", func() error { return p.fs.Remove(name) })
}

// List lists the directory.
func (p *patience) List() ([]Info, error) {
	return within(p, longer*p.wait, "listing the directory", p.fs.List, nil)
}

// SyncDir makes names durable.
func (p *patience) SyncDir() error {
	return p.only(longer*p.wait, "making names durable", p.fs.SyncDir)
}

type patientFile struct {
	file File
	p    *patience
}

// Write implements File. A write that takes too long goes on with the bytes of data, which the caller must not change.
func (f *patientFile) Write(data []byte) (int, error) {
	return within(f.p, f.p.wait, "writing", func() (int, error) { return f.file.Write(data) }, nil)
}

// Sync implements File.
func (f *patientFile) Sync() error {
	return f.p.only(longer*f.p.wait, "making a file durable", f.file.Sync)
}

// Close implements File. A mounted bucket may upload the file.
func (f *patientFile) Close() error { return f.p.close(longer*f.p.wait, f.file.Close) }

type patientReadable struct {
	file Readable
	p    *patience
}

// isDirect returns whether reads bypass the page cache.
func (f *patientReadable) isDirect() bool {
	_, is := f.file.(*direct)
	return is
}

// fill reads the file from an offset on into data, which is a part of memory. It returns the checksum of the bytes between two
// positions in data; the file may end after the later one. A read that takes too long goes on, and holds the memory until it ends.
func (f *patientReadable) fill(memory Block, data []byte, from int64, begin, end int) (uint32, error) {
	if err := f.p.resting(); err != nil {
		return 0, err
	}
	most := pieceBytes
	if f.isDirect() {
		most = len(data)
	}
	memory.Retain()
	return await(f.p, f.p.wait, "reading", func() (uint32, error) {
		defer memory.Release()
		var sum summer
		for at := 0; at < end; {
			piece := data[at:min(at+most, len(data))]
			n, err := f.file.ReadAt(piece, from+int64(at))
			if err != nil && (!errors.Is(err, io.EOF) || at+n < end) {
				return 0, err
			}
			sum.add(data[min(max(at, begin), at+n):min(at+n, end)])
			at += n
		}
		return sum.checksum(), nil
	}, nil)
}

// Close closes the file.
func (f *patientReadable) Close() error { return f.p.close(f.p.wait, f.file.Close) }

// close closes a file also while the file system rests. No more calls than open files go on alone.
func (p *patience) close(most time.Duration, file func() error) error {
	if p.resting() != nil {
		p.alone(func() { _ = file() })
		return nil
	}
	return p.only(most, "closing a file", file)
}
