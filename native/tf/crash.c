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

enum { patience_ms = 1000 };

static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
static struct sigaction before[NSIG];
static int question, answer;
// Address range of the program's own code, which is Go's. All other code is in shared objects.
static uintptr_t own_first, own_last;

// Waits for a bounded time until the other end has received the report and closes.
static void report(int signal) {
  int saved = errno;
  unsigned char word = (unsigned char)signal;
  if (write(question, &word, 1) == 1) {
    struct pollfd reply = {.fd = answer, .events = POLLIN};
    poll(&reply, 1, patience_ms);
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
  int ours = info->si_code > 0 || info->si_pid == getpid();
  if (ours && (at < own_first || at >= own_last)) report(signal);
  const struct sigaction* old = &before[signal];
  if (old->sa_flags & SA_SIGINFO) {
    old->sa_sigaction(signal, info, context);
    return;
  }
  sigaction(signal, old, NULL);
  raise(signal);
}

static void exits(void) { report(0); }

static int find_own(struct dl_phdr_info* object, size_t size, void* unused) {
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
      own_first = object->dlpi_addr + part->p_vaddr;
      own_last = own_first + part->p_memsz;
    }
  }
  return 1;  // The first object is the program.
}

int pecan_on_crash(int question_to, int answer_from) {
  question = question_to;
  answer = answer_from;
  dl_iterate_phdr(find_own, NULL);
  struct sigaction action = {.sa_sigaction = crashed, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigfillset(&action.sa_mask);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    if (sigaction(signals[i], &action, &before[signals[i]]) != 0) return errno;
  }
  return atexit(exits) == 0 ? 0 : ENOMEM;
}
