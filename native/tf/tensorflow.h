// What the Go side of this package calls: a thin layer over TensorFlow's eager C API in which one call from Go fetches
// one element or many. Every function that can fail takes the status and leaves it for the caller to read.
#ifndef PECAN_NATIVE_TF_TENSORFLOW_H_
#define PECAN_NATIVE_TF_TENSORFLOW_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/eager/c_api.h"

// Dims of a tensor that are copied out together with it; tensors of a higher rank are asked dim by dim.
#define PECAN_INLINE_DIMS 8

typedef struct {
  TF_Tensor* tensor;
  void* data;
  size_t bytes;
  int32_t dtype;
  int32_t rank;
  int64_t dims[PECAN_INLINE_DIMS];
} pecan_tensor;

// What every element has to be for the fast ways below. rank < 0: any; dim < 0: any.
typedef struct {
  int32_t rank;
  int64_t dims[PECAN_INLINE_DIMS];
} pecan_shape;

// One component of a block: all rows one after the other.
typedef struct {
  pecan_shape shape;
  size_t width;
  char* data;
} pecan_column;

typedef struct pecan_iterator pecan_iterator;

// When a fill returns before it is full: after linger_ns, or after hurry_ns while the flag of the iterator is set.
typedef struct {
  int64_t max_rows;
  int64_t linger_ns;
  int64_t hurry_ns;
} pecan_pace;

TFE_Context* pecan_new_context(const void* config, size_t config_len, TF_Status* status);

pecan_iterator* pecan_new_iterator(TFE_Context* context, const void* graph, size_t graph_len, const int32_t* types,
                                   int components, TF_Status* status);
void pecan_delete_iterator(pecan_iterator* iterator);
void pecan_cancel_iterator(pecan_iterator* iterator);
// Both must live as long as the iterator. hurry is read during fills; progress is set to the rows that a fill has written
// so far, so that others may read them while the fill waits for its next element.
void pecan_share(pecan_iterator* iterator, const int32_t* hurry, int64_t* progress);

// Fetches one element into out (one per component), and gives the status's code. Nothing is held when it is not OK.
TF_Code pecan_next(pecan_iterator* iterator, pecan_tensor* out, TF_Status* status);

// Runs and drops up to n elements, tells how many in *done, and gives the status's code.
TF_Code pecan_skip(pecan_iterator* iterator, int64_t n, int64_t* done, TF_Status* status);

// Fetches elements into columns. Gives the rows written. An element of another shape ends the fill and is handed over in
// odd, with *has_odd set; an error or the end of the sequence ends it with the status set, rows before it stay valid.
int64_t pecan_fill_columns(pecan_iterator* iterator, const pecan_column* columns, const pecan_pace* pace,
                           pecan_tensor* odd, int32_t* has_odd, TF_Status* status);

// A payload of elements of any shape and its table, in the layout of docs/formats/frame.md.
typedef struct {
  char* payload;
  size_t payload_cap;
  size_t payload_len;
  char* table;
  size_t table_cap;
  size_t table_len;
} pecan_pack;

// As pecan_fill_columns, for elements whose shapes differ or that hold strings. An element larger than max_element or one
// that does not fit is handed over in odd.
int64_t pecan_fill_pack(pecan_iterator* iterator, const pecan_shape* shapes, pecan_pack* pack, size_t max_element,
                        const pecan_pace* pace, pecan_tensor* odd, int32_t* has_odd, TF_Status* status);
// Puts one element into the pack; false when it does not fit.
bool pecan_put_pack(pecan_pack* pack, const pecan_tensor* element, int components);

// Serialised ModelProto of the running iterator, or NULL.
TF_Buffer* pecan_model(pecan_iterator* iterator, TF_Status* status);
// Serialised Summary of what a graph's meters counted under a name, or NULL; and the end of the counting.
TF_Buffer* pecan_meters(pecan_iterator* iterator, const char* name, TF_Status* status);
void pecan_drop_meters(pecan_iterator* iterator, const char* name, TF_Status* status);

// The state of an iterator as a tensor of variants that share its buffers; then what of it can be written, a scalar string; and
// the way back, for an iterator over an equal graph that has given nothing yet. NULL, or a status, where that fails.
TFE_TensorHandle* pecan_save(pecan_iterator* iterator, TF_Status* status);
TF_Tensor* pecan_write_state(pecan_iterator* iterator, TFE_TensorHandle* state, TF_Status* status);
void pecan_restore(pecan_iterator* iterator, const void* state, size_t len, TF_Status* status);

void pecan_describe(TF_Tensor* tensor, pecan_tensor* out);
void pecan_delete_tensor(TF_Tensor* tensor);
void pecan_delete_tensors(pecan_tensor* tensors, int n);
// A tensor with memory of its own, to be filled through its data pointer. NULL when memory cannot be had.
TF_Tensor* pecan_new_tensor(int32_t dtype, const int64_t* dims, int rank, size_t bytes);
// A string tensor from n lengths followed by the bytes of the strings; NULL when the payload does not hold them.
TF_Tensor* pecan_new_strings(const int64_t* dims, int rank, int64_t n, const char* payload, size_t len);

// Bytes of a string tensor in a payload: lengths and strings.
size_t pecan_strings_size(TF_Tensor* tensor);
void pecan_strings_pack(TF_Tensor* tensor, char* out);
const char* pecan_string_at(TF_Tensor* tensor, int64_t i, size_t* len);

// Tensors that Go holds now, for leak checks.
int64_t pecan_live_tensors(void);
void pecan_count_tensors(int64_t by);

// Registers the source op PecanPull and its kernel; once per process.
void pecan_register_pull(TF_Status* status);

#endif  // PECAN_NATIVE_TF_TENSORFLOW_H_
