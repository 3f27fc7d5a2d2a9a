package tf

// #include "crash.h"
import "C"

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// crashes holds the callbacks for when native code ends the process.
var crashes struct {
	sync.Mutex
	callbacks map[*func(cause string)]bool
	// question receives the signal's number from the handler, answered lets the handler continue. Both live
	// as long as the process.
	question, answered *os.File
	handler            [2]*os.File
}

// OnCrash calls callback, with a description, when native code is about to end this process. Native code does so by a signal
// of its own (SIGABRT, SIGSEGV and the like) or by exit(). The process ends when callback returns, or a second later. A
// signal from another process is no crash, and neither is a Go panic or os.Exit. forget removes the callback.
func OnCrash(callback func(cause string)) (forget func(), err error) {
	crashes.Lock()
	defer crashes.Unlock()
	if crashes.callbacks == nil {
		if err := watchCrashes(); err != nil {
			return nil, fmt.Errorf("watch for crashes of native code: %w", err)
		}
		crashes.callbacks = map[*func(string)]bool{}
	}
	crashes.callbacks[&callback] = true
	return func() {
		crashes.Lock()
		defer crashes.Unlock()
		delete(crashes.callbacks, &callback)
	}, nil
}

func watchCrashes() (err error) {
	if crashes.question, crashes.handler[0], err = os.Pipe(); err != nil {
		return err
	}
	if crashes.handler[1], crashes.answered, err = os.Pipe(); err != nil {
		return err
	}
	if number := C.pecan_on_crash(C.int(crashes.handler[0].Fd()), C.int(crashes.handler[1].Fd())); number != 0 {
		return syscall.Errno(number)
	}
	go func() {
		var signal [1]byte
		if n, _ := crashes.question.Read(signal[:]); n == 1 {
			crashDescription(int(signal[0]))
		}
		crashes.answered.Close()
	}()
	return nil
}

func crashDescription(signal int) {
	cause := "exit"
	if signal != 0 {
		cause = unix.SignalName(syscall.Signal(signal))
	}
	crashes.Lock()
	defer crashes.Unlock()
	var handlers sync.WaitGroup
	for callback := range crashes.callbacks {
		handlers.Go(func() { (*callback)(cause) })
	}
	handlers.Wait()
}
