// Only this file includes ops.h and kernels.h of TensorFlow. ops.h needs these typedefs to compile as C. kernels.h defines a
// constant, which a second inclusion would define again.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "ops.h"

typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_DimensionHandle TF_DimensionHandle;
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_tstring.h"

static _Atomic int64_t live;
static _Atomic bool forked;
static _Atomic uint64_t interrupts, acknowledged;

int64_t pecan_live(void) { return atomic_load(&live); }

// ---- functions that Go calls

void pecan_fail(TF_OpKernelContext* context, int code, const char* message, size_t len) {
  char* text = strndup(message, len);
  TF_Status* status = TF_NewStatus();
  TF_SetStatus(status, (TF_Code)code, text == NULL ? "out of memory" : text);
  TF_OpKernelContext_Failure(context, status);
  TF_DeleteStatus(status);
  free(text);
}

static bool fail_text(TF_OpKernelContext* context, TF_Code code, const char* text) {
  pecan_fail(context, code, text, strlen(text));
  return false;
}

// Passes a tensor to TensorFlow, which adds its own reference.
static bool set_output(TF_OpKernelContext* context, int index, TF_Tensor* tensor) {
  if (tensor == NULL) return fail_text(context, TF_RESOURCE_EXHAUSTED, "pecan: no memory for a tensor");
  TF_Status* status = TF_NewStatus();
  TF_SetOutput(context, index, tensor, status);
  bool ok = TF_GetCode(status) == TF_OK;
  if (!ok) TF_OpKernelContext_Failure(context, status);
  TF_DeleteTensor(tensor);
  TF_DeleteStatus(status);
  return ok;
}

bool pecan_input(TF_OpKernelContext* context, int index, int64_t* value) {
  TF_Status* status = TF_NewStatus();
  TF_Tensor* tensor = NULL;
  TF_GetInput(context, index, &tensor, status);
  bool ok = TF_GetCode(status) == TF_OK;
  if (!ok) {
    TF_OpKernelContext_Failure(context, status);
  } else if (TF_TensorByteSize(tensor) < sizeof(int64_t)) {
    ok = fail_text(context, TF_INVALID_ARGUMENT, "pecan: an empty tensor is no handle");
  } else {
    memcpy(value, TF_TensorData(tensor), sizeof(int64_t));
  }
  if (tensor != NULL) TF_DeleteTensor(tensor);
  TF_DeleteStatus(status);
  return ok;
}

static void release_owner(void* data, size_t len, void* arg) {
  (void)data;
  (void)len;
  atomic_fetch_sub(&live, 1);
  if (!atomic_load(&forked)) pecanRelease((uintptr_t)arg);
}

bool pecan_output(TF_OpKernelContext* context, int index, int32_t dtype, const int64_t* dims, int rank,
                  const void* data, size_t bytes, uintptr_t owner) {
  if (owner != 0) {
    atomic_fetch_add(&live, 1);
    return set_output(context, index,
                TF_NewTensor((TF_DataType)dtype, dims, rank, (void*)data, bytes, release_owner, (void*)owner));
  }
  TF_Status* status = TF_NewStatus();
  TF_Tensor* tensor = TF_AllocateOutput(context, index, (TF_DataType)dtype, dims, rank, bytes, status);
  bool ok = TF_GetCode(status) == TF_OK;
  if (!ok) {
    TF_OpKernelContext_Failure(context, status);
  } else if (TF_TensorByteSize(tensor) != bytes) {
    ok = fail_text(context, TF_INTERNAL, "pecan: an element's dims and its bytes do not agree");
  } else if (bytes > 0) {
    memcpy(TF_TensorData(tensor), data, bytes);
  }
  if (tensor != NULL) TF_DeleteTensor(tensor);
  TF_DeleteStatus(status);
  return ok;
}

// TensorFlow does not destroy the strings of a tensor that came through the C API. Strings outside of their
// TF_TString would leak.
static void free_strings(void* data, size_t len, void* arg) {
  (void)arg;
  TF_TString* strings = data;
  for (size_t i = 0; i < len / sizeof(TF_TString); i++) TF_StringDealloc(&strings[i]);
  free(data);
  atomic_fetch_sub(&live, 1);
}

static void* aligned(size_t bytes) {
  size_t rounded = (bytes + 63) & ~(size_t)63;
  return aligned_alloc(64, rounded == 0 ? 64 : rounded);
}

bool pecan_output_strings(TF_OpKernelContext* context, int index, const int64_t* dims, int rank, int64_t n,
                          const void* lengths, const void* data, size_t bytes) {
  TF_TString* strings = aligned((size_t)n * sizeof(TF_TString));
  if (strings == NULL) return fail_text(context, TF_RESOURCE_EXHAUSTED, "pecan: no memory for strings");
  atomic_fetch_add(&live, 1);
  size_t at = 0;
  for (int64_t i = 0; i < n; i++) {
    uint64_t size;
    memcpy(&size, (const char*)lengths + (size_t)i * sizeof size, sizeof size);
    if (size > bytes - at) {
      free_strings(strings, (size_t)i * sizeof(TF_TString), NULL);
      return fail_text(context, TF_DATA_LOSS, "pecan: the lengths of an element's strings exceed its bytes");
    }
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], (const char*)data + at, size);
    at += size;
  }
  return set_output(context, index,
              TF_NewTensor(TF_STRING, dims, rank, strings, (size_t)n * sizeof(TF_TString), free_strings, NULL));
}

static void drop_handle(void* data, size_t len, void* arg) {
  (void)len;
  free(data);
  atomic_fetch_sub(&live, 1);
  if (!atomic_load(&forked)) pecanDrop((uintptr_t)arg);
}

bool pecan_output_handle(TF_OpKernelContext* context, int index, uintptr_t handle) {
  int64_t dim = 1;
  int64_t* data = aligned(sizeof(int64_t));
  if (data == NULL) {
    pecanDrop(handle);
    return fail_text(context, TF_RESOURCE_EXHAUSTED, "pecan: no memory for a handle");
  }
  *data = (int64_t)handle;
  atomic_fetch_add(&live, 1);
  return set_output(context, index, TF_NewTensor(TF_INT64, &dim, 1, data, sizeof(int64_t), drop_handle, (void*)handle));
}

bool pecan_output_bool(TF_OpKernelContext* context, int index, bool value) {
  TF_Bool byte = value;
  return pecan_output(context, index, TF_BOOL, NULL, 0, &byte, sizeof byte, 0);
}

// ---- kernels

static bool usable(TF_OpKernelContext* context) {
  if (!atomic_load(&forked)) return true;
  char text[384];
  snprintf(text, sizeof text,
           "pecan was loaded before this process (%d) was forked and cannot run in it: start processes with the "
           "\"spawn\" or \"forkserver\" method, or call pecan first in the child [pecan:USED_AFTER_FORK]",
           (int)getpid());
  return fail_text(context, TF_FAILED_PRECONDITION, text);
}

static void* create_plain(TF_OpKernelConstruction* construction) {
  (void)construction;
  return calloc(1, sizeof(pecan_kernel));
}

static void* create_typed(TF_OpKernelConstruction* construction) {
  pecan_kernel* kernel = calloc(1, sizeof(pecan_kernel));
  TF_Status* status = TF_NewStatus();
  int32_t list = 0, total = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, "output_types", &list, &total, status);
  if (TF_GetCode(status) == TF_OK) {
    kernel->outputs = list;
    kernel->dtypes = calloc(list + 1, sizeof(int32_t));
    TF_DataType types[list + 1];
    TF_OpKernelConstruction_GetAttrTypeList(construction, "output_types", types, list, status);
    for (int i = 0; i < list; i++) kernel->dtypes[i] = (int32_t)types[i];
  }
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  TF_DeleteStatus(status);
  return kernel;
}

static void delete_kernel(void* raw) {
  pecan_kernel* kernel = raw;
  if (kernel == NULL) return;
  free(kernel->dtypes);
  free(kernel);
}

static void compute_job(void* kernel, TF_OpKernelContext* context) {
  (void)kernel;
  if (usable(context)) pecanJob(context);
}

static void compute_open(void* kernel, TF_OpKernelContext* context) {
  (void)kernel;
  if (usable(context)) pecanOpen(context);
}

static void compute_next(void* kernel, TF_OpKernelContext* context) {
  if (usable(context)) pecanNext(context, kernel);
}

static void compute_block(void* kernel, TF_OpKernelContext* context) {
  if (usable(context)) pecanNextBlock(context, kernel);
}

// ---- registration

static void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

typedef struct {
  const char* name;
  const char* inputs[2];
  const char* outputs[2];
  bool typed;
  void (*compute)(void*, TF_OpKernelContext*);
} pecan_op;

static const pecan_op ops[] = {
    {"PecanJob", {"handle: int64"}, {"job: int64"}, false, compute_job},
    {"PecanOpen", {"job: int64"}, {"iteration: int64"}, false, compute_open},
    {"PecanNext", {"iteration: int64", "position: int64"}, {"ready: bool", "components: output_types"}, true, compute_next},
    {"PecanNextBlock", {"iteration: int64", "position: int64"}, {"rows: output_types"}, true, compute_block},
};

static void register_op(const pecan_op* op, TF_Status* status) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(op->name);
  if (op->typed) TF_OpDefinitionBuilderAddAttr(builder, "output_types: list(type) >= 1");
  for (int i = 0; i < 2 && op->inputs[i] != NULL; i++) TF_OpDefinitionBuilderAddInput(builder, op->inputs[i]);
  for (int i = 0; i < 2 && op->outputs[i] != NULL; i++) TF_OpDefinitionBuilderAddOutput(builder, op->outputs[i]);
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, unknown_shapes);
  TF_RegisterOpDefinition(builder, status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_KernelBuilder* kernel = TF_NewKernelBuilder(op->name, "CPU", op->typed ? create_typed : create_plain,
                                                 op->compute, delete_kernel);
  TF_RegisterKernelBuilder(op->name, kernel, status);
}

static void in_child(void) { atomic_store(&forked, true); }

__attribute__((constructor)) static void load(void) {
  pthread_atfork(NULL, NULL, in_child);
  TF_Status* status = TF_NewStatus();
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    register_op(&ops[i], status);
    // An error cannot be reported from here. TensorFlow reports the missing op when it is looked up.
    if (TF_GetCode(status) != TF_OK) fprintf(stderr, "pecan: register %s: %s\n", ops[i].name, TF_Message(status));
  }
  TF_DeleteStatus(status);
}

// ---- interrupts

static struct sigaction previous;

static void on_interrupt(int number, siginfo_t* info, void* raw) {
  atomic_fetch_add(&interrupts, 1);
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(number, info, raw);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
  }
}

uint64_t pecan_unacknowledged_interrupt(void) {
  uint64_t last = atomic_load(&interrupts);
  return last == atomic_load(&acknowledged) ? 0 : last;
}

void pecan_acknowledge_interrupts(void) { atomic_store(&acknowledged, atomic_load(&interrupts)); }

void pecan_handle_interrupts(void) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  struct sigaction current;
  bool is_installed = sigaction(SIGINT, NULL, &current) != 0 ||
                      ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_interrupt);
  // Without a handler the signal ends the process, or is ignored. Both are correct.
  bool none = !(current.sa_flags & SA_SIGINFO) && (current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN);
  if (!is_installed && !none) {
    struct sigaction chained;
    memset(&chained, 0, sizeof chained);
    chained.sa_sigaction = on_interrupt;
    chained.sa_flags = current.sa_flags | SA_SIGINFO;
    chained.sa_mask = current.sa_mask;
    previous = current;
    sigaction(SIGINT, &chained, NULL);
  }
  pthread_mutex_unlock(&mutex);
}
