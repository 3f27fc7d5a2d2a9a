package control

import (
	"os"

	"github.com/pecan-ml/pecan/proto/reason"
)

// checkProcess fails in a process that was forked off the process pid. Go's threads do not exist in the
// child, so any wait there would never end. The check helps only where Go code runs at all; C callers check
// before they call Go.
func checkProcess(pid int) error {
	if now := os.Getpid(); now != pid {
		return reason.New(reason.UsedAfterFork, "pecan was used in process %d, which was forked off process %d after pecan had started there: "+
			"start processes with the \"spawn\" or \"forkserver\" method, or use pecan first in the child", now, pid)
	}
	return nil
}
