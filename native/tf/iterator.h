// The iterator that executor.c opens and runs, and from which fill.c fetches many elements.
#ifndef PECAN_NATIVE_TF_ITERATOR_H_
#define PECAN_NATIVE_TF_ITERATOR_H_

#include "tensorflow.h"

// eager/c_api_experimental.h does not compile as C, so the package declares what it uses of it.
typedef struct TFE_CancellationManager TFE_CancellationManager;

struct pecan_iterator {
  TFE_Context* context;
  TFE_TensorHandle* resource;
  TFE_CancellationManager* cancellation;
  // IteratorGetNextSync with its attributes and cancellation manager, executed again for each element. An
  // execution removes its input.
  TFE_Op* next;
  // The resource of pecan_meters, from the first call on.
  TFE_TensorHandle* meters;
  int components;
  // Ops that run on the calling thread use no other threads.
  bool one_thread;
  // Set by Go when a reader waits.
  const int32_t* hurry;
  int64_t* progress;
};

#endif  // PECAN_NATIVE_TF_ITERATOR_H_
