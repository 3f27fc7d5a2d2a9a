// After this call, when native code ends this process, the number of the signal (0: exit) is written to one
// pipe. The process ends when the other end of the second pipe is closed. Returns an errno.
int pecan_on_crash(int report_to, int reply_from);
