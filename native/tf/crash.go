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

// crashes has those who want to know that native code ends the process.
var crashes struct {
	sync.Mutex
	tell map[*func(cause string)]bool
	// question gets the signal's number from the handler, answered lets it go on. They live as long as the process.
	question, answered *os.File
	handler            [2]*os.File
}

// OnCrash has tell called when native code is about to end this process by a signal of its own (SIGABRT, SIGSEGV and their like) or by
// exit(), with what it is. The process ends when tell returns, or a second later. A signal from another process is no crash, nor are a
// panic of Go or os.Exit. forget ends it.
func OnCrash(tell func(cause string)) (forget func(), err error) {
	crashes.Lock()
	defer crashes.Unlock()
	if crashes.tell == nil {
		if err := watchCrashes(); err != nil {
			return nil, fmt.Errorf("watch for crashes of native code: %w", err)
		}
		crashes.tell = map[*func(string)]bool{}
	}
	crashes.tell[&tell] = true
	return func() {
		crashes.Lock()
		defer crashes.Unlock()
		delete(crashes.tell, &tell)
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
			lastWords(int(signal[0]))
		}
		crashes.answered.Close()
	}()
	return nil
}

func lastWords(signal int) {
	cause := "exit"
	if signal != 0 {
		cause = unix.SignalName(syscall.Signal(signal))
	}
	crashes.Lock()
	defer crashes.Unlock()
	var told sync.WaitGroup
	for tell := range crashes.tell {
		told.Go(func() { (*tell)(cause) })
	}
	told.Wait()
}
