/* The device interface: quantizing weights that lie in host memory, which is what `nibble convert --device cuda` does
 * with each chunk. A part of libnibble_cuda beside nibble/kernels.h, whose types, results and nibble_last_error() it
 * shares.
 *
 * A queue is a CUDA stream and the device memory for one chunk: copy in, quantize, copy out. Several threads, each with
 * a queue of its own, keep copies in both directions and kernels going at the same time, as long as the host memory is
 * pinned. Unlike the functions of nibble/kernels.h these allocate, wait, and make the queue's device the current one of
 * the thread that calls. */
#ifndef NIBBLE_DEVICE_INTERFACE_H
#define NIBBLE_DEVICE_INTERFACE_H

/* C. NOLINTBEGIN(modernize-deprecated-headers, modernize-use-using) */

#include "nibble/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of the device interface. A program that loads the library at run time compares it with what the library says. */
#define NIBBLE_DEVICE_INTERFACE_VERSION 1
NIBBLE_API int nibble_device_interface_version(void);

/* The first device that the library has code for: its number, and its name for people (cut to name_bytes, with the 0
 * that ends it). NIBBLE_INTERNAL if there is none; nibble_last_error() has the reason. */
NIBBLE_API int nibble_find_device(int* device, char* name, size_t name_bytes);

/* Pins the pages that hold these bytes of host memory, so that the device copies from and to them by itself. `memory`
 * is aligned to 4096 bytes, and none of the pages may be pinned already. Must be undone before the memory is freed;
 * that never fails, also where pinning was refused. */
NIBBLE_API int nibble_pin(int device, void* memory, size_t bytes);
NIBBLE_API void nibble_unpin(int device, void* memory);

typedef struct nibble_queue nibble_queue;

/* Queues belong to no thread, but serve one call at a time. Device memory grows to what the largest chunk takes: as
 * much as its weights and their codes. Null may be destroyed. */
NIBBLE_API int nibble_queue_create(int device, nibble_queue** queue);
NIBBLE_API void nibble_queue_destroy(nibble_queue* queue);

/* nibble_quantize_four_bit() without double quantization, and nibble_quantize_int8() of a matrix without gaps, from and
 * to host memory of any alignment. They return when the results are there. *nonfinite is how many blocks or rows have a
 * NaN, an infinity or (int8) a magnitude that fp16 cannot hold. NIBBLE_USAGE: nothing happened. After any other failure
 * what is written is unspecified, and the queue is good for nothing but nibble_queue_destroy(). 4-bit weights may be
 * none (size 0), and then pointers to them may be null; an int8 matrix has at least one weight. */
NIBBLE_API int nibble_queue_quantize_four_bit(nibble_queue* queue, const void* weights, nibble_dtype dtype,
                                              uint64_t size, nibble_codebook codebook, uint32_t blocksize,
                                              uint8_t* packed, float* absmax, uint64_t* nonfinite);
NIBBLE_API int nibble_queue_quantize_int8(nibble_queue* queue, const void* weights, nibble_dtype dtype, uint64_t n,
                                          uint64_t k, int8_t* codes, float* absmax, uint64_t* nonfinite);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-deprecated-headers, modernize-use-using) */
#endif
