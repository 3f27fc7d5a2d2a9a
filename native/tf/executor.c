#include <stdlib.h>
#include <string.h>

#include "iterator.h"

// eager/c_api_experimental.h does not compile as C, so this file declares the functions that it uses.
extern TFE_CancellationManager* TFE_NewCancellationManager(void);
extern void TFE_CancellationManagerStartCancel(TFE_CancellationManager*);
extern void TFE_DeleteCancellationManager(TFE_CancellationManager*);
extern void TFE_OpSetCancellationManager(TFE_Op* op, TFE_CancellationManager* manager, TF_Status* status);

TFE_Context* pecan_new_context(const void* config, size_t config_len, TF_Status* status) {
  TFE_ContextOptions* options = TFE_NewContextOptions();
  TFE_ContextOptionsSetConfig(options, config, config_len, status);
  TFE_Context* context = NULL;
  if (TF_GetCode(status) == TF_OK) context = TFE_NewContext(options, status);
  TFE_DeleteContextOptions(options);
  return context;
}

// Executes an op with at most one result, and deletes the op.
static TFE_TensorHandle* run(TFE_Op* op, int results, TF_Status* status) {
  TFE_TensorHandle* result = NULL;
  int n = results;
  if (TF_GetCode(status) == TF_OK) TFE_Execute(op, results ? &result : NULL, &n, status);
  TFE_DeleteOp(op);
  if (TF_GetCode(status) == TF_OK) return result;
  if (result != NULL) TFE_DeleteTensorHandle(result);
  return NULL;
}

static void set_types(TFE_Op* op, const int32_t* types, int components, TF_Status* status) {
  TF_DataType* list = malloc(sizeof(TF_DataType) * components);
  const int64_t** dims = calloc(components, sizeof(int64_t*));
  int* ranks = malloc(sizeof(int) * components);
  for (int i = 0; i < components; i++) {
    list[i] = (TF_DataType)types[i];
    ranks[i] = -1;
  }
  TFE_OpSetAttrTypeList(op, "output_types", list, components);
  // Unknown shapes are valid for every dataset; the worker compares the elements with the spec.
  TFE_OpSetAttrShapeList(op, "output_shapes", dims, ranks, components, status);
  free(list);
  free(dims);
  free(ranks);
}

// Returns a handle of a scalar string with a copy of the bytes.
static TFE_TensorHandle* scalar_string(const void* data, size_t len, TF_Status* status) {
  char* payload = malloc(sizeof(uint64_t) + len);
  if (payload == NULL) {
    TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for a graph or a state");
    return NULL;
  }
  uint64_t length = len;
  memcpy(payload, &length, sizeof length);
  memcpy(payload + sizeof length, data, len);
  TF_Tensor* tensor = pecan_new_strings(NULL, 0, 1, payload, sizeof length + len);
  free(payload);
  if (tensor == NULL) {
    TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for a graph or a state");
    return NULL;
  }
  TFE_TensorHandle* handle = TFE_NewTensorHandle(tensor, status);
  pecan_delete_tensor(tensor);
  return TF_GetCode(status) == TF_OK ? handle : NULL;
}

static TFE_TensorHandle* dataset_from_graph(TFE_Context* context, const void* graph, size_t len, TF_Status* status) {
  TFE_TensorHandle* input = scalar_string(graph, len, status);
  if (input == NULL) return NULL;
  TFE_TensorHandle* dataset = NULL;
  TFE_Op* op = TFE_NewOp(context, "DatasetFromGraph", status);
  if (TF_GetCode(status) == TF_OK) {
    TFE_OpAddInput(op, input, status);
    dataset = run(op, 1, status);
  }
  TFE_DeleteTensorHandle(input);
  return dataset;
}

static void make_iterator(pecan_iterator* it, TFE_TensorHandle* dataset, const int32_t* types, TF_Status* status) {
  TFE_Op* op = TFE_NewOp(it->context, "AnonymousIteratorV3", status);
  if (TF_GetCode(status) != TF_OK) return;
  set_types(op, types, it->components, status);
  it->resource = run(op, 1, status);
  if (TF_GetCode(status) != TF_OK) return;

  op = TFE_NewOp(it->context, "MakeIterator", status);
  if (TF_GetCode(status) != TF_OK) return;
  TFE_OpAddInput(op, dataset, status);
  if (TF_GetCode(status) == TF_OK) TFE_OpAddInput(op, it->resource, status);
  run(op, 0, status);
  if (TF_GetCode(status) != TF_OK) return;

  // The synchronous form runs on the calling thread. IteratorGetNext would switch to a pool thread and back
  // for each element.
  it->next = TFE_NewOp(it->context, "IteratorGetNextSync", status);
  if (TF_GetCode(status) != TF_OK) return;
  set_types(it->next, types, it->components, status);
  it->cancellation = TFE_NewCancellationManager();
  if (TF_GetCode(status) == TF_OK) TFE_OpSetCancellationManager(it->next, it->cancellation, status);
}

pecan_iterator* pecan_new_iterator(TFE_Context* context, const void* graph, size_t graph_len, const int32_t* types,
                                   int components, TF_Status* status) {
  TFE_TensorHandle* dataset = dataset_from_graph(context, graph, graph_len, status);
  if (dataset == NULL) return NULL;
  pecan_iterator* it = calloc(1, sizeof(pecan_iterator));
  it->context = context;
  it->components = components;
  make_iterator(it, dataset, types, status);
  TFE_DeleteTensorHandle(dataset);
  if (TF_GetCode(status) == TF_OK) return it;
  pecan_delete_iterator(it);
  return NULL;
}

// drop_meters ends the counting.
static void drop_meters(pecan_iterator* it) {
  TF_Status* status = TF_NewStatus();
  TFE_Op* op = TFE_NewOp(it->context, "DestroyResourceOp", status);
  if (TF_GetCode(status) == TF_OK) {
    TFE_OpAddInput(op, it->meters, status);
    TFE_OpSetAttrBool(op, "ignore_lookup_error", 1);
    run(op, 0, status);
  }
  TF_DeleteStatus(status);
  TFE_DeleteTensorHandle(it->meters);
}

void pecan_delete_iterator(pecan_iterator* it) {
  if (it->meters != NULL) drop_meters(it);
  if (it->next != NULL) TFE_DeleteOp(it->next);
  // This is the last reference to the resource: TensorFlow destroys the iterator here, and waits for its
  // threads.
  if (it->resource != NULL) TFE_DeleteTensorHandle(it->resource);
  if (it->cancellation != NULL) TFE_DeleteCancellationManager(it->cancellation);
  free(it);
}

void pecan_cancel_iterator(pecan_iterator* it) { TFE_CancellationManagerStartCancel(it->cancellation); }

void pecan_share(pecan_iterator* it, const int32_t* hurry, int64_t* progress) {
  it->hurry = hurry;
  it->progress = progress;
}

// These two are C++ functions of TensorFlow's public headers (work_sharder.h), for which the C API has no equivalent. Both
// are NULL if this version of TensorFlow lacks them.
extern void set_thread_parallelism(int most) __asm__("_ZN10tensorflow26SetPerThreadMaxParallelismEi") __attribute__((weak));
extern int thread_parallelism(void) __asm__("_ZN10tensorflow26GetPerThreadMaxParallelismEv") __attribute__((weak));

bool pecan_one_thread(pecan_iterator* it) {
  if (set_thread_parallelism == NULL || thread_parallelism == NULL) return false;
  if (it != NULL) it->one_thread = true;
  return true;
}

// Fetches one element as handles. The caller admits one thread at a time.
static void execute_next(pecan_iterator* it, TFE_TensorHandle** handles, int* n, TF_Status* status) {
  TFE_OpAddInput(it->next, it->resource, status);
  if (TF_GetCode(status) != TF_OK) return;
  if (!it->one_thread) {
    TFE_Execute(it->next, handles, n, status);
    return;
  }
  int before = thread_parallelism();
  set_thread_parallelism(1);
  TFE_Execute(it->next, handles, n, status);
  set_thread_parallelism(before);
}

TF_Code pecan_next(pecan_iterator* it, pecan_tensor* out, TF_Status* status) {
  TFE_TensorHandle* few[16];
  TFE_TensorHandle** handles = few;
  if (it->components > 16) handles = malloc(sizeof(TFE_TensorHandle*) * it->components);
  int n = it->components;
  execute_next(it, handles, &n, status);
  if (TF_GetCode(status) == TF_OK) {
    int got = 0;
    for (int i = 0; i < n; i++) {
      if (TF_GetCode(status) == TF_OK) {
        TF_Tensor* tensor = TFE_TensorHandleResolve(handles[i], status);
        if (TF_GetCode(status) == TF_OK) {
          pecan_count_tensors(1);
          pecan_describe(tensor, &out[got++]);
        }
      }
      TFE_DeleteTensorHandle(handles[i]);
    }
    if (TF_GetCode(status) != TF_OK) pecan_delete_tensors(out, got);
  }
  if (handles != few) free(handles);
  return TF_GetCode(status);
}

TF_Code pecan_skip(pecan_iterator* it, int64_t n, int64_t* done, TF_Status* status) {
  TFE_TensorHandle** handles = malloc(sizeof(TFE_TensorHandle*) * it->components);
  for (*done = 0; *done < n; ++*done) {
    int results = it->components;
    execute_next(it, handles, &results, status);
    if (TF_GetCode(status) != TF_OK) break;
    for (int i = 0; i < results; i++) TFE_DeleteTensorHandle(handles[i]);
  }
  free(handles);
  return TF_GetCode(status);
}

// take_string returns the content of a scalar string handle, and deletes the handle.
static TF_Buffer* take_string(TFE_TensorHandle* handle, TF_Status* status) {
  if (handle == NULL) return NULL;
  TF_Tensor* tensor = TFE_TensorHandleResolve(handle, status);
  TFE_DeleteTensorHandle(handle);
  if (tensor == NULL) return NULL;
  size_t len = 0;
  const char* data = pecan_string_at(tensor, 0, &len);
  TF_Buffer* buffer = TF_NewBufferFromString(data, len);
  TF_DeleteTensor(tensor);
  return buffer;
}

TF_Buffer* pecan_model(pecan_iterator* it, TF_Status* status) {
  TFE_Op* op = TFE_NewOp(it->context, "IteratorGetModelProto", status);
  if (TF_GetCode(status) != TF_OK) return NULL;
  TFE_OpAddInput(op, it->resource, status);
  return take_string(run(op, 1, status), status);
}

// open_meters finds the resource in which a graph's meters count. The iterator keeps its handle.
static void open_meters(pecan_iterator* it, const char* name, TF_Status* status) {
  TFE_Op* op = TFE_NewOp(it->context, "StatsAggregatorHandle", status);
  if (TF_GetCode(status) != TF_OK) return;
  TFE_OpSetAttrString(op, "container", "", 0);
  TFE_OpSetAttrString(op, "shared_name", name, strlen(name));
  it->meters = run(op, 1, status);
}

TF_Buffer* pecan_meters(pecan_iterator* it, const char* name, TF_Status* status) {
  if (it->meters == NULL) open_meters(it, name, status);
  if (it->meters == NULL) return NULL;
  TFE_Op* op = TFE_NewOp(it->context, "StatsAggregatorSummary", status);
  if (TF_GetCode(status) != TF_OK) return NULL;
  TFE_OpAddInput(op, it->meters, status);
  return take_string(run(op, 1, status), status);
}

TFE_TensorHandle* pecan_save(pecan_iterator* it, TF_Status* status) {
  TFE_Op* op = TFE_NewOp(it->context, "SerializeIterator", status);
  if (TF_GetCode(status) != TF_OK) return NULL;
  TFE_OpAddInput(op, it->resource, status);
  // State inside functions is not saved. The plan says for which graphs that is harmless.
  TFE_OpSetAttrInt(op, "external_state_policy", 1);
  return run(op, 1, status);
}

TF_Tensor* pecan_write_state(pecan_iterator* it, TFE_TensorHandle* state, TF_Status* status) {
  TFE_Op* op = TFE_NewOp(it->context, "SerializeTensor", status);
  if (TF_GetCode(status) != TF_OK) return NULL;
  TFE_OpAddInput(op, state, status);
  TFE_TensorHandle* written = run(op, 1, status);
  if (written == NULL) return NULL;
  TF_Tensor* tensor = TFE_TensorHandleResolve(written, status);
  TFE_DeleteTensorHandle(written);
  return tensor;
}

void pecan_restore(pecan_iterator* it, const void* state, size_t len, TF_Status* status) {
  TFE_TensorHandle* written = scalar_string(state, len, status);
  if (written == NULL) return;
  TFE_TensorHandle* variants = NULL;
  TFE_Op* op = TFE_NewOp(it->context, "ParseTensor", status);
  if (TF_GetCode(status) == TF_OK) {
    TFE_OpAddInput(op, written, status);
    TFE_OpSetAttrType(op, "out_type", TF_VARIANT);
    variants = run(op, 1, status);
  }
  TFE_DeleteTensorHandle(written);
  if (variants == NULL) return;
  op = TFE_NewOp(it->context, "DeserializeIterator", status);
  if (TF_GetCode(status) == TF_OK) {
    TFE_OpAddInput(op, it->resource, status);
    if (TF_GetCode(status) == TF_OK) TFE_OpAddInput(op, variants, status);
    run(op, 0, status);
  }
  TFE_DeleteTensorHandle(variants);
}
