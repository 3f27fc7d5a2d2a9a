// Reports that native code ends the process. TensorFlow's kernels abort, fault and exit on their own threads,
// while Go code continues to run.
#define _GNU_SOURCE
#include "crash.h"

#include <errno.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

enum { reply_timeout_ms = 1000 };

static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
static struct sigaction old_actions[NSIG];
// report_fd sends reports to crash.go. reply_fd is readable after the report has arrived.
static int report_fd, reply_fd;
// Address range of the program's own code, which is Go's. All other code is in shared objects.
static uintptr_t go_text_first, go_text_last;

// Waits for a bounded time until the other end has received the report and closes.
static void report(int signal) {
  int saved = errno;
  unsigned char word = (unsigned char)signal;
  if (write(report_fd, &word, 1) == 1) {
    struct pollfd reply = {.fd = reply_fd, .events = POLLIN};
    poll(&reply, 1, reply_timeout_ms);
  }
  errno = saved;
}

static uintptr_t place_of(const ucontext_t* context) {
#if defined(__x86_64__)
  return (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return (uintptr_t)context->uc_mcontext.pc;
#else
#error "crash.c: where is the program counter of this processor?"
#endif
}

static void crashed(int signal, siginfo_t* info, void* context) {
  uintptr_t at = place_of(context);
  // A signal from another process is no crash. A fault in Go becomes a panic, which may be recovered.
  int raised_here = info->si_code > 0 || info->si_pid == getpid();
  if (raised_here && (at < go_text_first || at >= go_text_last)) report(signal);
  const struct sigaction* old = &old_actions[signal];
  if (old->sa_flags & SA_SIGINFO) {
    old->sa_sigaction(signal, info, context);
    return;
  }
  sigaction(signal, old, NULL);
  raise(signal);
}

static void exits(void) { report(0); }

static int find_go_text(struct dl_phdr_info* object, size_t size, void* unused) {
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
      go_text_first = object->dlpi_addr + part->p_vaddr;
      go_text_last = go_text_first + part->p_memsz;
    }
  }
  return 1;  // The first object is the program.
}

int pecan_on_crash(int report_to, int reply_from) {
  report_fd = report_to;
  reply_fd = reply_from;
  dl_iterate_phdr(find_go_text, NULL);
  struct sigaction action = {.sa_sigaction = crashed, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigfillset(&action.sa_mask);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    if (sigaction(signals[i], &action, &old_actions[signals[i]]) != 0) return errno;
  }
  return atexit(exits) == 0 ? 0 : ENOMEM;
}
