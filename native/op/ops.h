// Functions that the Go side of this package calls. Kernels run on TensorFlow's threads: compute functions in
// ops.c call the exported Go functions, which return tensors through the functions below, one call each.
#ifndef PECAN_NATIVE_OP_OPS_H_
#define PECAN_NATIVE_OP_OPS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TF_OpKernelContext TF_OpKernelContext;

// What a kernel knows about itself: the dtypes that its outputs must have.
typedef struct {
  int outputs;
  int32_t* dtypes;
} pecan_kernel;

// Reads element 0 of an int64 input. Returns false, after failing the kernel, if there is none.
bool pecan_input(TF_OpKernelContext* context, int index, int64_t* value);

// Output of fixed-width values. With owner 0 the bytes are copied. Otherwise the tensor wraps them, and its
// deallocator calls pecanRelease(owner). The call takes over the owner also when it fails.
bool pecan_output(TF_OpKernelContext* context, int index, int32_t dtype, const int64_t* dims, int rank,
                  const void* data, size_t bytes, uintptr_t owner);

// Output of n strings, copied: their lengths (u64, little endian) and their bytes one after the other.
bool pecan_output_strings(TF_OpKernelContext* context, int index, const int64_t* dims, int rank, int64_t n,
                          const void* lengths, const void* data, size_t bytes);

// Output of a handle. Its deallocator calls pecanDrop(handle).
bool pecan_output_handle(TF_OpKernelContext* context, int index, uintptr_t handle);

bool pecan_output_bool(TF_OpKernelContext* context, int index, bool value);

// Fails the kernel with a TF_Code and a message.
void pecan_fail(TF_OpKernelContext* context, int code, const char* message, size_t len);

// Returns the number of the last SIGINT since the first call of pecan_handle_interrupts, or 0 if all were
// acknowledged.
uint64_t pecan_unacknowledged_interrupt(void);
// Records that the process's own handler has run.
void pecan_acknowledge_interrupts(void);
// Counts SIGINTs from now on, and passes each one on to the installed handler. A second call finds a handler
// that was installed since.
void pecan_handle_interrupts(void);

// Tensors and handles that TensorFlow holds now, for leak checks.
int64_t pecan_live(void);

#endif  // PECAN_NATIVE_OP_OPS_H_
