// From now on the number of the signal (0: exit) goes to one pipe when native code ends this process, which it does once the other end of
// the second pipe is closed. Gives an errno.
int pecan_on_crash(int question_to, int answer_from);
