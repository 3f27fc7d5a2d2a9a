package control

import (
	"os"

	"github.com/pecan-ml/pecan/proto/reason"
)

// checkProcess tells a process that was forked off after this one started: Go's threads did not come along, so whatever
// would wait in it waits for ever. It only helps where Go code runs at all; C callers check before they call.
func checkProcess(pid int) error {
	if now := os.Getpid(); now != pid {
		return reason.New(reason.UsedAfterFork, "pecan was used in process %d, which was forked off process %d after pecan had started there: "+
			"start processes with the \"spawn\" or \"forkserver\" method, or use pecan first in the child", now, pid)
	}
	return nil
}
