// Only this file of the package includes ops.h and kernels.h. ops.h needs these typedefs to compile as C. kernels.h defines a
// constant, which a second inclusion would define again.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "_cgo_export.h"
#include "iterator.h"
#include "tensorflow.h"

typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_DimensionHandle TF_DimensionHandle;
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"

struct pecan_loan {
  atomic_int users;
  pthread_mutex_t lock;
  // NULL while nothing is lent.
  pecan_iterator* it;
  TF_Status* status;
  // The elements that were fetched, one after the other, with room for most_elements.
  pecan_tensor* elements;
  int64_t fetched, most_elements;
  size_t bytes, most_bytes;
  int64_t nanoseconds;
  TF_Code code;
};

pecan_loan* pecan_new_loan(void) {
  pecan_loan* loan = calloc(1, sizeof(pecan_loan));
  loan->users = 1;
  pthread_mutex_init(&loan->lock, NULL);
  return loan;
}

void pecan_retain_loan(pecan_loan* loan) { loan->users++; }

void pecan_release_loan(pecan_loan* loan) {
  if (--loan->users > 0) return;
  pthread_mutex_destroy(&loan->lock);
  free(loan->elements);
  free(loan);
}

void pecan_lend(pecan_loan* loan, pecan_iterator* it, int64_t most_elements, size_t most_bytes, TF_Status* status) {
  pthread_mutex_lock(&loan->lock);
  free(loan->elements);
  loan->elements = calloc(most_elements * it->components, sizeof(pecan_tensor));
  loan->it = it;
  loan->status = status;
  loan->fetched = loan->nanoseconds = 0;
  loan->bytes = 0;
  loan->most_elements = most_elements;
  loan->most_bytes = most_bytes;
  loan->code = TF_OK;
  pthread_mutex_unlock(&loan->lock);
}

int64_t pecan_recall(pecan_loan* loan, pecan_tensor** elements, int64_t* nanoseconds, TF_Code* code) {
  pthread_mutex_lock(&loan->lock);
  loan->it = NULL;
  *elements = loan->elements;
  *nanoseconds = loan->nanoseconds;
  *code = loan->code;
  int64_t fetched = loan->fetched;
  pthread_mutex_unlock(&loan->lock);
  return fetched;
}

typedef struct {
  int64_t source;
  int outputs;
  // NULL if the source lends nothing.
  pecan_loan* loan;
} pull_kernel;

static void set_output(TF_OpKernelContext* context, int i, TF_Tensor* tensor, TF_Status* status) {
  if (TF_TensorType(tensor) != TF_ExpectedOutputDataType(context, i))
    TF_SetStatus(status, TF_INTERNAL, "the source gave a component of another dtype");
  if (TF_GetCode(status) == TF_OK) TF_SetOutput(context, i, tensor, status);
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static size_t bytes_of(const pecan_tensor* tensor) {
  return tensor->dtype == TF_STRING ? pecan_strings_size(tensor->tensor) : tensor->bytes;
}

// Fetches an element from a lent iterator. Returns false if Go has to supply it.
static bool pull_lent(pull_kernel* kernel, TF_OpKernelContext* context, TF_Status* status) {
  pecan_loan* loan = kernel->loan;
  bool fetched = false;
  pthread_mutex_lock(&loan->lock);
  if (loan->it != NULL && loan->it->components == kernel->outputs && loan->code == TF_OK &&
      loan->fetched < loan->most_elements && loan->bytes < loan->most_bytes) {
    pecan_tensor* element = loan->elements + loan->fetched * kernel->outputs;
    int64_t began = now();
    loan->code = pecan_next(loan->it, element, loan->status);
    loan->nanoseconds += now() - began;
    fetched = loan->code == TF_OK;
    for (int i = 0; fetched && i < kernel->outputs; i++) {
      loan->bytes += bytes_of(&element[i]);
      if (TF_GetCode(status) == TF_OK) set_output(context, i, element[i].tensor, status);
    }
    loan->fetched += fetched;
  }
  pthread_mutex_unlock(&loan->lock);
  return fetched;
}

static void* create_pull(TF_OpKernelConstruction* construction) {
  TF_Status* status = TF_NewStatus();
  pull_kernel* kernel = calloc(1, sizeof(pull_kernel));
  TF_OpKernelConstruction_GetAttrInt64(construction, "source", &kernel->source, status);
  if (TF_GetCode(status) == TF_OK) {
    int32_t list = 0, total = 0;
    TF_OpKernelConstruction_GetAttrSize(construction, "output_types", &list, &total, status);
    kernel->outputs = list;
  }
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  TF_DeleteStatus(status);
  kernel->loan = pecanLoanOf(kernel->source);
  return kernel;
}

static void pull_from_go(pull_kernel* kernel, TF_OpKernelContext* context, TF_Status* status) {
  TF_Tensor** tensors = calloc(kernel->outputs + 1, sizeof(TF_Tensor*));
  // This blocks until the source has a batch. A cancel reaches the source on the Go side, because kernels
  // cannot see a cancellation here.
  pecanPull(kernel->source, tensors, kernel->outputs, status);
  for (int i = 0; i < kernel->outputs; i++) {
    if (tensors[i] == NULL) continue;
    if (TF_GetCode(status) == TF_OK) set_output(context, i, tensors[i], status);
    pecan_delete_tensor(tensors[i]);
  }
  free(tensors);
}

static void compute_pull(void* raw, TF_OpKernelContext* context) {
  pull_kernel* kernel = raw;
  TF_Status* status = TF_NewStatus();
  if (kernel->loan == NULL || !pull_lent(kernel, context, status)) pull_from_go(kernel, context, status);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
  TF_DeleteStatus(status);
}

static void delete_pull(void* raw) {
  pull_kernel* kernel = raw;
  if (kernel->loan != NULL) pecan_release_loan(kernel->loan);
  free(kernel);
}

static void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void pecan_register_pull(TF_Status* status) {
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder("PecanPull");
  TF_OpDefinitionBuilderAddAttr(op, "source: int");
  TF_OpDefinitionBuilderAddAttr(op, "output_types: list(type) >= 1");
  TF_OpDefinitionBuilderAddAttr(op, "output_shapes: list(shape) >= 1");
  TF_OpDefinitionBuilderAddOutput(op, "components: output_types");
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, unknown_shapes);
  TF_RegisterOpDefinition(op, status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_KernelBuilder* kernel = TF_NewKernelBuilder("PecanPull", "CPU", create_pull, compute_pull, delete_pull);
  TF_RegisterKernelBuilder("PecanPull", kernel, status);
}
