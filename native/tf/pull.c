// Only this file of the package includes ops.h and kernels.h. ops.h needs these typedefs to compile as C. kernels.h defines a
// constant, which a second inclusion would define again.
#include <stdlib.h>

#include "_cgo_export.h"
#include "tensorflow.h"

typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_DimensionHandle TF_DimensionHandle;
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"

typedef struct {
  int64_t source;
  int outputs;
} pull_kernel;

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
  return kernel;
}

static void compute_pull(void* raw, TF_OpKernelContext* context) {
  pull_kernel* kernel = raw;
  TF_Status* status = TF_NewStatus();
  TF_Tensor** tensors = calloc(kernel->outputs + 1, sizeof(TF_Tensor*));
  // This blocks until the source has a batch. A cancel reaches the source on the Go side, because kernels
  // cannot see a cancellation here.
  pecanPull(kernel->source, tensors, kernel->outputs, status);
  for (int i = 0; i < kernel->outputs; i++) {
    if (tensors[i] == NULL) continue;
    if (TF_GetCode(status) == TF_OK && TF_TensorType(tensors[i]) != TF_ExpectedOutputDataType(context, i))
      TF_SetStatus(status, TF_INTERNAL, "the source gave a component of another dtype");
    if (TF_GetCode(status) == TF_OK) TF_SetOutput(context, i, tensors[i], status);
    pecan_delete_tensor(tensors[i]);
  }
  free(tensors);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
  TF_DeleteStatus(status);
}

static void delete_pull(void* kernel) { free(kernel); }

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
