#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"
#include "tensorflow.h"
#include "tensorflow/c/tf_tstring.h"

static _Atomic int64_t live_tensors;

int64_t pecan_live_tensors(void) { return atomic_load(&live_tensors); }
void pecan_count_tensors(int64_t by) { atomic_fetch_add_explicit(&live_tensors, by, memory_order_relaxed); }

void pecan_describe(TF_Tensor* tensor, pecan_tensor* out) {
  out->tensor = tensor;
  out->data = TF_TensorData(tensor);
  out->bytes = TF_TensorByteSize(tensor);
  out->dtype = (int32_t)TF_TensorType(tensor);
  out->rank = TF_NumDims(tensor);
  for (int i = 0; i < out->rank && i < PECAN_INLINE_DIMS; i++) out->dims[i] = TF_Dim(tensor, i);
}

void pecan_delete_tensor(TF_Tensor* tensor) {
  pecan_count_tensors(-1);
  TF_DeleteTensor(tensor);
}

void pecan_delete_tensors(pecan_tensor* tensors, int n) {
  for (int i = 0; i < n; i++) pecan_delete_tensor(tensors[i].tensor);
}

static void free_memory(void* data, size_t len, void* arg) {
  (void)len;
  (void)arg;
  free(data);
}

// TensorFlow does not destroy the strings of a tensor that came through the C API. Strings outside of their
// TF_TString would leak.
static void free_strings(void* data, size_t len, void* arg) {
  (void)arg;
  TF_TString* strings = data;
  for (size_t i = 0; i < len / sizeof(TF_TString); i++) TF_StringDealloc(&strings[i]);
  free(data);
}

static void* aligned(size_t bytes) {
  size_t rounded = (bytes + 63) & ~(size_t)63;
  return aligned_alloc(64, rounded == 0 ? 64 : rounded);
}

TF_Tensor* pecan_new_tensor(int32_t dtype, const int64_t* dims, int rank, size_t bytes) {
  void* data = aligned(bytes);
  if (data == NULL) return NULL;
  TF_Tensor* tensor = TF_NewTensor((TF_DataType)dtype, dims, rank, data, bytes, free_memory, NULL);
  if (tensor != NULL) pecan_count_tensors(1);
  return tensor;
}

static void release_memory(void* data, size_t len, void* owner) {
  (void)data;
  (void)len;
  pecanReleaseShared((uintptr_t)owner);
}

TF_Tensor* pecan_share_tensor(int32_t dtype, const int64_t* dims, int rank, const void* data, size_t bytes, uintptr_t owner) {
  TF_Tensor* tensor = TF_NewTensor((TF_DataType)dtype, dims, rank, (void*)data, bytes, release_memory, (void*)owner);
  if (tensor != NULL) pecan_count_tensors(1);
  return tensor;
}

TF_Tensor* pecan_new_strings(const int64_t* dims, int rank, int64_t n, const char* payload, size_t len) {
  if (n < 0 || (uint64_t)n > len / sizeof(uint64_t)) return NULL;
  size_t at = (size_t)n * sizeof(uint64_t);
  TF_TString* strings = aligned((size_t)n * sizeof(TF_TString));
  if (strings == NULL) return NULL;
  for (int64_t i = 0; i < n; i++) {
    uint64_t size;
    memcpy(&size, payload + (size_t)i * sizeof size, sizeof size);
    if (size > len - at) {
      free_strings(strings, (size_t)i * sizeof(TF_TString), NULL);
      return NULL;
    }
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], payload + at, size);
    at += size;
  }
  TF_Tensor* tensor =
      TF_NewTensor(TF_STRING, dims, rank, strings, (size_t)n * sizeof(TF_TString), free_strings, NULL);
  if (tensor != NULL) pecan_count_tensors(1);
  return tensor;
}

size_t pecan_strings_size(TF_Tensor* tensor) {
  const TF_TString* strings = TF_TensorData(tensor);
  int64_t n = TF_TensorElementCount(tensor);
  size_t total = (size_t)n * sizeof(uint64_t);
  for (int64_t i = 0; i < n; i++) total += TF_StringGetSize(&strings[i]);
  return total;
}

void pecan_strings_pack(TF_Tensor* tensor, char* out) {
  const TF_TString* strings = TF_TensorData(tensor);
  int64_t n = TF_TensorElementCount(tensor);
  char* bytes = out + (size_t)n * sizeof(uint64_t);
  for (int64_t i = 0; i < n; i++) {
    uint64_t size = TF_StringGetSize(&strings[i]);
    memcpy(out + (size_t)i * sizeof size, &size, sizeof size);
    memcpy(bytes, TF_StringGetDataPointer(&strings[i]), size);
    bytes += size;
  }
}

const char* pecan_string_at(TF_Tensor* tensor, int64_t i, size_t* len) {
  const TF_TString* strings = TF_TensorData(tensor);
  *len = TF_StringGetSize(&strings[i]);
  return TF_StringGetDataPointer(&strings[i]);
}
