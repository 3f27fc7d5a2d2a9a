// The Go side of this package calls these functions. They are a thin layer over TensorFlow's eager C API, in which one call
// from Go fetches one element or many. Every function that can fail takes the status, which the caller reads.
#ifndef PECAN_NATIVE_TF_TENSORFLOW_H_
#define PECAN_NATIVE_TF_TENSORFLOW_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/eager/c_api.h"

// Dims of a tensor that are copied together with it. Tensors of a higher rank are queried dim by dim.
#define PECAN_INLINE_DIMS 8

typedef struct {
  TF_Tensor* tensor;
  void* data;
  size_t bytes;
  int32_t dtype;
  int32_t rank;
  int64_t dims[PECAN_INLINE_DIMS];
} pecan_tensor;

// Required shape of every element for the fast paths below. rank < 0: any; dim < 0: any.
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

// When a fill returns before it is full: after linger_ns, or after hurry_ns while the iterator's flag is set.
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
// Both must live as long as the iterator. hurry is read during fills. progress is set to the rows that a fill
// has written so far. Others may read them while the fill waits for its next element.
void pecan_share(pecan_iterator* iterator, const int32_t* hurry, int64_t* progress);

// Makes ops that run on the thread of a fetch use no other threads, as tf.data limits ops on its own threads by default.
// Returns false if this version of TensorFlow cannot do that. The iterator may be NULL.
bool pecan_one_thread(pecan_iterator* iterator);

// Fetches one element into out (one tensor per component), and returns the status's code. Nothing is held
// unless it is OK.
TF_Code pecan_next(pecan_iterator* iterator, pecan_tensor* out, TF_Status* status);

// Computes and drops up to n elements, sets *done to their number, and returns the status's code.
TF_Code pecan_skip(pecan_iterator* iterator, int64_t n, int64_t* done, TF_Status* status);

// Fetches elements into columns, and returns the rows written. An element of another shape ends the fill and
// is returned in mismatch, with *has_mismatch set. An error or the end of the sequence ends the fill with the
// status set; the rows before it stay valid.
int64_t pecan_fill_columns(pecan_iterator* iterator, const pecan_column* columns, const pecan_pace* pace,
                           pecan_tensor* mismatch, int32_t* has_mismatch, TF_Status* status);

// A payload of elements of any shape, and its table, in the layout of docs/formats/frame.md.
typedef struct {
  char* payload;
  size_t payload_cap;
  size_t payload_len;
  char* table;
  size_t table_cap;
  size_t table_len;
} pecan_pack;

// Like pecan_fill_columns, for elements with strings or different shapes. An element larger than max_element,
// or one that does not fit, is returned in mismatch.
int64_t pecan_fill_pack(pecan_iterator* iterator, const pecan_shape* shapes, pecan_pack* pack, size_t max_element,
                        const pecan_pace* pace, pecan_tensor* mismatch, int32_t* has_mismatch, TF_Status* status);
// Puts one element into the pack. Returns false if it does not fit.
bool pecan_put_pack(pecan_pack* pack, const pecan_tensor* element, int components);

// Returns the serialised ModelProto of the running iterator, or NULL.
TF_Buffer* pecan_model(pecan_iterator* iterator, TF_Status* status);
// Returns the serialised Summary of what a graph's meters counted under a name, or NULL. An iterator has one name, and
// the caller admits one thread at a time. The end of the iterator ends the counting.
TF_Buffer* pecan_meters(pecan_iterator* iterator, const char* name, TF_Status* status);

// Returns the state of an iterator as a tensor of variants that share its buffers. The second function makes
// a writable scalar string of it, and the third restores it in a new iterator over an equal graph. They
// return NULL, or a status, on failure.
TFE_TensorHandle* pecan_save(pecan_iterator* iterator, TF_Status* status);
TF_Tensor* pecan_write_state(pecan_iterator* iterator, TFE_TensorHandle* state, TF_Status* status);
void pecan_restore(pecan_iterator* iterator, const void* state, size_t len, TF_Status* status);

void pecan_describe(TF_Tensor* tensor, pecan_tensor* out);
void pecan_delete_tensor(TF_Tensor* tensor);
void pecan_delete_tensors(pecan_tensor* tensors, int n);
// Returns a tensor with its own memory, which the caller fills through the data pointer. NULL if no memory is
// available.
TF_Tensor* pecan_new_tensor(int32_t dtype, const int64_t* dims, int rank, size_t bytes);
// Returns a tensor of memory that it does not copy, aligned to 64 bytes. When TensorFlow needs the memory no more, it is released with
// pecanReleaseShared(owner): at once if the result is NULL.
TF_Tensor* pecan_share_tensor(int32_t dtype, const int64_t* dims, int rank, const void* data, size_t bytes, uintptr_t owner);
// Returns a string tensor from n lengths followed by the bytes of the strings; NULL if the payload does not
// contain them.
TF_Tensor* pecan_new_strings(const int64_t* dims, int rank, int64_t n, const char* payload, size_t len);

// Size of a string tensor in a payload: lengths and strings.
size_t pecan_strings_size(TF_Tensor* tensor);
void pecan_strings_pack(TF_Tensor* tensor, char* out);
const char* pecan_string_at(TF_Tensor* tensor, int64_t i, size_t* len);

// Tensors that Go holds now, for leak checks.
int64_t pecan_live_tensors(void);
void pecan_count_tensors(int64_t by);

// What the op PecanPull of one source may fetch by itself, from an iterator that Go has lent to it. The op keeps the elements.
typedef struct pecan_loan pecan_loan;
pecan_loan* pecan_new_loan(void);
void pecan_retain_loan(pecan_loan* loan);
// Frees a loan after its last user.
void pecan_release_loan(pecan_loan* loan);
// Lends an iterator: for that many elements or bytes, or to its end. Go does not use the iterator or the status before
// pecan_recall.
void pecan_lend(pecan_loan* loan, pecan_iterator* iterator, int64_t most_elements, size_t most_bytes, TF_Status* status);
// Ends what pecan_lend began, after the fetch in progress. Returns the number of elements that the op has fetched, which *elements
// has until the next pecan_lend, and the time that it took. *code is that of the last fetch, whose error the status has.
int64_t pecan_recall(pecan_loan* loan, pecan_tensor** elements, int64_t* nanoseconds, TF_Code* code);

// Registers the source op PecanPull and its kernel. Call it once per process.
void pecan_register_pull(TF_Status* status);

#endif  // PECAN_NATIVE_TF_TENSORFLOW_H_
