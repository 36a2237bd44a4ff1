/* Operations on quantized weights in device memory, as a C interface: libnibble_cuda, which needs neither torch nor the
 * rest of nibble. nibble/kernels.hpp is the same for C++.
 *
 * What holds for every function:
 *
 * - Pointers are to device memory, unless the text says host. They need the alignment of their type; a pointer aligned
 *   to 16 bytes is faster. Nothing may overlap what is written.
 * - Work is put on `stream`, which must belong to the current device, and the function returns at once: it never
 *   synchronizes and allocates nothing, so it can be captured into a CUDA graph. (CUDA itself loads the code of a
 *   kernel when it is first called on a device, which takes longer.) Memory that it needs besides is asked for by
 *   ..._workspace() and given by the caller, aligned to 16 bytes; what is in it before does not matter, and after the
 *   work is done it is free for anything.
 * - Sizes are in elements unless the name says bytes. 64 bits everywhere: a weight may have more than 2^31 elements.
 *   m is the number of tokens, n of output features (rows of a weight), k of input features (its columns).
 * - The same input gives the same bytes, always: no order of additions depends on timing.
 * - The result is 0, or one of nibble_status, and then nibble_last_error() says why. NIBBLE_USAGE: nothing
 *   was launched.
 * - The driver is that of CUDA 13 (R580) or later; with an older one every function that launches is NIBBLE_INTERNAL.
 * - Any number of threads may call at once. */
#ifndef NIBBLE_KERNELS_H
#define NIBBLE_KERNELS_H

/* C. NOLINTBEGIN(modernize-deprecated-headers, modernize-use-using) */

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define NIBBLE_API __declspec(dllexport)
#else
#define NIBBLE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A cudaStream_t. 0 is the default stream. */
typedef struct CUstream_st* nibble_stream;

/* The version of this interface. It grows when a function changes what it takes; a program that loads the library at
 * run time compares nibble_kernels_version() with it. */
#define NIBBLE_KERNELS_VERSION 2
NIBBLE_API int nibble_kernels_version(void);

/* Results of functions; the values are those of nibble::Errc. */
typedef enum nibble_status {
  NIBBLE_OK = 0,
  NIBBLE_INTERNAL = 1, /* CUDA refused: no device, a device that the library has no code for, a broken context */
  NIBBLE_USAGE = 2     /* an argument that makes no sense; the text names it, the fact and the limit */
} nibble_status;

/* Why the last function of this thread that failed did so: one line, valid until the next one fails. */
NIBBLE_API const char* nibble_last_error(void);

typedef enum nibble_dtype { NIBBLE_F32 = 0, NIBBLE_F16 = 1, NIBBLE_BF16 = 2 } nibble_dtype;

typedef enum nibble_codebook { NIBBLE_NF4 = 0, NIBBLE_FP4 = 1 } nibble_codebook;

/* A weight [n, k] in blocks of 4-bit codes, bitsandbytes' bytes as they are on disk. The elements of the bytes count in
 * row-major order, and blocks run on over the ends of rows.
 *
 *   weight = codebook[code] * absmax[element / blocksize]                                        rounded once
 *   absmax = nested_codebook[absmax_codes[i]] * nested_absmax[i / 256] + nested_offset           two roundings, no fma
 *
 * Either `absmax` or the four of the nested form are given; the others are null. Sources: the files that bitsandbytes
 * 0.50 writes; Dettmers et al., "QLoRA", 2023, section 3.
 *
 * A weight may be a slice of a larger one, as tensor parallelism needs it: its element [i][j] is the larger one's
 * element first + i * stride + j, and the pointers are those of the larger one. For rows 1024 to 2047 of [n, k]: rows =
 * 1024, first = 1024 * k. For the right half of the columns: columns = k / 2, first = k / 2, stride = k. */
typedef struct nibble_four_bit {
  size_t struct_bytes; /* sizeof(nibble_four_bit), so that members can be added at the end */
  nibble_codebook codebook;
  uint32_t blocksize;           /* 32, 64, ..., 4096 weights per absmax */
  uint64_t rows, columns;       /* n, k */
  const uint8_t* packed;        /* two elements per byte; element 2i is the high nibble of byte i */
  const float* absmax;          /* one for `blocksize` elements, rounded up */
  const uint8_t* absmax_codes;  /* as many */
  const float* nested_absmax;   /* one for 256 absmax_codes, rounded up */
  const float* nested_codebook; /* 256 values */
  const float* nested_offset;   /* one value */
  uint64_t first, stride;       /* of a slice, in elements; a stride of 0 means `columns` */
} nibble_four_bit;

/* A weight [n, k] in LLM.int8() form: one absmax (SCB) per row.
 *
 *   weight = (code * absmax[row]) * (1 / 127)                                                     two roundings
 */
typedef struct nibble_int8 {
  uint64_t rows, columns; /* n, k */
  const int8_t* codes;    /* n * k, row-major */
  const float* absmax;    /* n */
} nibble_int8;

/* A matrix in row-major order whose rows start `stride` elements apart (at least `columns`). */
typedef struct nibble_matrix {
  nibble_dtype dtype;
  uint64_t rows, columns, stride;
  void* data;
} nibble_matrix;

/* --- dequantize: weights from codes ------------------------------------------------------------------------------ */

/* out[i][j] = weight[first_row + i][j] for i < out.rows, rounded to out.dtype (nearest, ties to even) from the fp32
 * value above. out.columns must be the weight's; first_row + out.rows at most its rows. One launch, nested or not. A
 * slice must have whole rows: stride = columns. */
NIBBLE_API int nibble_dequantize_four_bit(const nibble_four_bit* weight, uint64_t first_row, const nibble_matrix* out,
                                          nibble_stream stream);
NIBBLE_API int nibble_dequantize_int8(const nibble_int8* weight, uint64_t first_row, const nibble_matrix* out,
                                      nibble_stream stream);

/* --- quantize: codes from weights, the bytes of the CPU codecs ------------------------------------------------------
 */

/* Where the parts of a 4-bit weight go: as nibble_four_bit, written. Nested if absmax_codes is not null; then
 * nested_absmax and nested_offset are written too (the codebook is nibble's own: nibble_nested_codebook()). */
typedef struct nibble_four_bit_output {
  nibble_codebook codebook;
  uint32_t blocksize;
  uint8_t* packed;
  float* absmax;         /* null when nested */
  uint8_t* absmax_codes; /* null when not */
  float* nested_absmax;
  float* nested_offset;
} nibble_four_bit_output;

/* Bytes of workspace for `size` weights. Host. */
NIBBLE_API size_t nibble_quantize_four_bit_workspace(uint64_t size, uint32_t blocksize, int nested);

/* Quantizes weights[0 ... size) of `dtype`, in row-major order, by the rules of nibble/nf4.hpp, fp4.hpp and nested.hpp
 * (IEEE arithmetic, not the approximate reciprocal of bitsandbytes' CUDA kernel). Adds the number of blocks with a NaN
 * or an infinity to *nonfinite_blocks unless that is null. */
NIBBLE_API int nibble_quantize_four_bit(const void* weights, nibble_dtype dtype, uint64_t size,
                                        const nibble_four_bit_output* out, uint64_t* nonfinite_blocks, void* workspace,
                                        size_t workspace_bytes, nibble_stream stream);

/* Quantizes a matrix [n, k] row by row by the rules of nibble/int8.hpp: codes (n * k) and absmax (n). Adds the
 * number of rows with a NaN, an infinity or a magnitude that fp16 cannot hold to *nonfinite_rows unless that is null.
 */
NIBBLE_API int nibble_quantize_int8(const nibble_matrix* weights, int8_t* codes, float* absmax,
                                    uint64_t* nonfinite_rows, nibble_stream stream);

/* The 256 values of nested codes, ascending. Host memory. */
NIBBLE_API const float* nibble_nested_codebook(void);

/* --- matmul: products with quantized weights, never written out ------------------------------------------------------
 */

/* Weights of one product. */
#define NIBBLE_MATMUL_MAX_PRODUCTS 4
/* Elements of nibble_matmul.counters. */
#define NIBBLE_MATMUL_COUNTERS 4096

/* One weight [n, k] that x is multiplied with, and where the result goes. */
typedef struct nibble_four_bit_product {
  const nibble_four_bit* weight;
  const void* bias;       /* n values of the compute type, or null */
  const nibble_matrix* y; /* [m, n], of the compute type or F32 */
} nibble_four_bit_product;

/* y = x * transposed(weight) + bias for each of the products, in one launch.
 *
 * Products are of x and the codebook's values rounded to the compute type, which is x's, or for an x of F32
 * `compute_dtype`, to which x is rounded first. They are added in fp32; absmax multiplies sums of products that share
 * it, in fp32; these, the bias and what y had before are added in fp32 and rounded once, to y. The order depends on the
 * shapes and on the alignment, on nothing else (docs/four-bit-matmul.md has it, and the error).
 *
 * Fast where k and x.stride allow it: k, first and stride multiples of 64, blocksize at least 64, packed aligned to 8
 * bytes, x and its rows to 16. For m above 64 each 64 rows read the weight again; from a few hundred on it is faster to
 * dequantize the weight and to call a library for 16-bit products. */
typedef struct nibble_matmul {
  size_t struct_bytes;    /* sizeof(nibble_matmul), so that members can be added at the end */
  const nibble_matrix* x; /* [m, k], m less than 2^31 */
  const nibble_four_bit_product* products;
  uint32_t product_count; /* 1 to NIBBLE_MATMUL_MAX_PRODUCTS weights that share x, for example those of q, k and v: with
                             the same columns, codebook, blocksize and form of absmax */
  uint32_t experts;       /* 0, or the number of experts whose weights [n, k] follow each other in the one weight */
  const uint32_t* ends; /* experts: the rows of x and y from ends[e - 1] (or 0) to ends[e] are those of expert e, tokens
                           being sorted by expert. Device memory, so that nobody has to wait for the router. Rows from
                           the last end on are not written; an end beyond m counts as m */
  nibble_dtype compute_dtype; /* of an x of F32: F16 or BF16. Otherwise F32, which says nothing, or x's */
  int accumulate;             /* not 0: y += instead of y =. Rounded once */
  int weights_are_ready; /* not 0: no work on the stream that may still run writes the weights (what holds for all but
                            the first product after a load). Then the launch does not wait for the one before, but reads
                            codes meanwhile: programmatic dependent launch, from sm_90 on */
  uint32_t* counters; /* NIBBLE_MATMUL_COUNTERS zeros that the product finds and leaves so; products on the same stream
                         may share them. Null: the workspace has them, and each call clears them, one more operation */
} nibble_matmul;

/* Bytes of workspace for the product. Refuses what the product would refuse. Host. */
NIBBLE_API int nibble_matmul_four_bit_workspace(const nibble_matmul* matmul, size_t* bytes);
NIBBLE_API int nibble_matmul_four_bit(const nibble_matmul* matmul, void* workspace, size_t workspace_bytes,
                                      nibble_stream stream);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-deprecated-headers, modernize-use-using) */
#endif
