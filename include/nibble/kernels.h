/* Operations on quantized weights in device memory, as a C interface: libnibble_cuda, which needs neither torch nor the
 * rest of nibble. nibble/kernels.hpp is the same for C++.
 *
 * What holds for every function:
 *
 * - Pointers are to device memory, unless the text says host. They need the alignment of their type; a pointer aligned
 *   to 16 bytes is faster. Nothing may overlap what is written.
 * - A function puts its work on `stream`, which must belong to the current device, and returns at once. It never
 *   synchronizes and never allocates, so it can be captured into a CUDA graph; the exception is the first product of
 *   many rows, which may load cuBLASLt (nibble_matmul). (CUDA itself loads the code of a kernel when it is first
 *   launched on a device, which takes longer.)
 * - If a function needs more memory, ..._workspace() says how much. The caller provides it, aligned to 16 bytes. Its
 *   contents do not matter before the call, and when the work is done it can be used for anything else.
 * - Sizes are in elements unless the name says bytes. They have 64 bits: a weight may have more than 2^31 elements.
 *   m is the number of tokens, n of output features (rows of a weight), k of input features (its columns).
 * - The same input always gives the same bytes on a device: no order of additions depends on timing. That of a product
 *   with a 4-bit weight is another one on devices of compute capability 9.0 (nibble_matmul). What cuBLASLt multiplies
 *   (nibble_matmul.min_library_m) is an exception: cuBLAS promises it for one kind of device and one version.
 * - The result is a nibble_status. If it is not NIBBLE_OK, nibble_last_error() says why. After NIBBLE_USAGE nothing was
 *   launched.
 * - The driver must be that of CUDA 13 (R580) or later. With an older one, functions that launch return
 *   NIBBLE_INTERNAL.
 * - Any number of threads may call at the same time.
 * - Later versions may add members at the end of structs that begin with struct_bytes. The caller stores the size of
 *   the struct there, as its own version has it. Members that the caller's version lacks count as 0. Bytes beyond those
 *   that the library's version has must be 0. If one is not, the caller asks for what this library cannot do, and the
 *   call is NIBBLE_USAGE. If the library fills the struct in, it sets these bytes to 0 instead. A size of more than
 *   NIBBLE_MAX_STRUCT_BYTES is NIBBLE_USAGE, and so is one that is not a multiple of the alignment of size_t, which no
 *   struct has. (All of this also holds for the structs of nibble/c_api.h.) */
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

/* The most that struct_bytes may be. No struct is as large. */
#define NIBBLE_MAX_STRUCT_BYTES 4096

/* A cudaStream_t. 0 is the default stream. */
typedef struct CUstream_st* nibble_stream;

/* The version of this interface. It increases when the arguments of a function change. A program that loads the library
 * at run time compares nibble_kernels_version() with it. */
#define NIBBLE_KERNELS_VERSION 4
NIBBLE_API int nibble_kernels_version(void);

/* Results of functions; the values are those of nibble::Errc. */
typedef enum nibble_status {
  NIBBLE_OK = 0,
  NIBBLE_INTERNAL = 1, /* CUDA refused: no device, a device that the library has no code for, a broken context */
  NIBBLE_USAGE = 2     /* an argument that makes no sense; the text names it, the fact and the limit */
} nibble_status;

/* Why the last failed call of this thread failed: one line, valid until another call of this thread fails. */
NIBBLE_API const char* nibble_last_error(void);

/* The number of `counters` that a product takes, by which the last thread block to finish a sum knows that it is the
 * last. They are zeros in device memory, and the call leaves zeros there, so all products on one stream can share them.
 * If they are null, the workspace has room for them, and each call clears them first, with one more operation that is
 * no kernel launch. */
#define NIBBLE_COUNTERS 4096

typedef enum nibble_dtype { NIBBLE_F32 = 0, NIBBLE_F16 = 1, NIBBLE_BF16 = 2 } nibble_dtype;

typedef enum nibble_codebook { NIBBLE_NF4 = 0, NIBBLE_FP4 = 1 } nibble_codebook;

/* A weight [n, k] in blocks of 4-bit codes, in the bytes that bitsandbytes stores on disk. Elements are numbered in
 * row-major order, and a block may continue in the next row.
 *
 *   weight = codebook[code] * absmax[element / blocksize]                                        rounded once
 *   absmax = nested_codebook[absmax_codes[i]] * nested_absmax[i / 256] + nested_offset           two roundings, no fma
 *
 * Give either `absmax` or all four pointers of the nested form; the others are null. Sources: the files that
 * bitsandbytes 0.50 writes; Dettmers et al., "QLoRA", 2023, section 3.
 *
 * A weight may be a slice of a larger one, as in tensor parallelism. Its element [i][j] is then element first + i *
 * stride + j of the larger one, whose pointers it keeps. Rows 1024 to 2047 of [n, k] are rows = 1024, first = 1024 * k.
 * The right half of the columns is columns = k / 2, first = k / 2, stride = k. */
typedef struct nibble_four_bit {
  size_t struct_bytes; /* sizeof(nibble_four_bit) */
  nibble_codebook codebook;
  uint32_t blocksize;           /* 32, 64, ..., 4096 weights per absmax */
  uint64_t rows, columns;       /* n, k */
  const uint8_t* packed;        /* two elements per byte; element 2i is the high nibble of byte i */
  const float* absmax;          /* one per blocksize elements, rounded up */
  const uint8_t* absmax_codes;  /* the same number */
  const float* nested_absmax;   /* one per 256 absmax_codes, rounded up */
  const float* nested_codebook; /* 256 values */
  const float* nested_offset;   /* one value */
  uint64_t first, stride;       /* of a slice, in elements; a stride of 0 means `columns` */
} nibble_four_bit;

/* A weight [n, k] in LLM.int8() form: one absmax (SCB) per row.
 *
 *   weight = (code * absmax[row]) * (1 / 127)                                                     two roundings
 */
typedef struct nibble_int8 {
  size_t struct_bytes;    /* sizeof(nibble_int8) */
  uint64_t rows, columns; /* n, k */
  const int8_t* codes;    /* n * k, row-major */
  const float* absmax;    /* n */
} nibble_int8;

/* A matrix in row-major order whose rows start `stride` elements apart (at least `columns`). */
typedef struct nibble_matrix {
  size_t struct_bytes; /* sizeof(nibble_matrix) */
  nibble_dtype dtype;
  uint64_t rows, columns, stride;
  void* data;
} nibble_matrix;

/* --- dequantize: weights from codes ------------------------------------------------------------------------------ */

/* out[i][j] = weight[first_row + i][j] for i < out.rows, rounded to out.dtype (nearest, ties to even) from the fp32
 * value above. out.columns must be the weight's columns, and first_row + out.rows at most its rows. One launch, nested
 * or not. A slice must have whole rows: stride = columns. */
NIBBLE_API int nibble_dequantize_four_bit(const nibble_four_bit* weight, uint64_t first_row, const nibble_matrix* out,
                                          nibble_stream stream);
NIBBLE_API int nibble_dequantize_int8(const nibble_int8* weight, uint64_t first_row, const nibble_matrix* out,
                                      nibble_stream stream);

/* --- quantize: codes from weights, in the bytes of the CPU codecs ------------------------------------------------- */

/* Where the parts of a 4-bit weight are written; the members are those of nibble_four_bit. The result is nested if
 * absmax_codes is not null. Then nested_absmax and nested_offset are written too; the nested codebook is always
 * nibble_nested_codebook(). */
typedef struct nibble_four_bit_output {
  size_t struct_bytes; /* sizeof(nibble_four_bit_output) */
  nibble_codebook codebook;
  uint32_t blocksize;
  uint8_t* packed;
  float* absmax;         /* null if nested */
  uint8_t* absmax_codes; /* null if not */
  float* nested_absmax;
  float* nested_offset;
} nibble_four_bit_output;

/* Writes the bytes of workspace that `size` weights need to *bytes, which is host memory; 0 if not nested. Refuses a
 * size and a blocksize that nibble_quantize_four_bit() would refuse. */
NIBBLE_API int nibble_quantize_four_bit_workspace(uint64_t size, uint32_t blocksize, int nested, size_t* bytes);

/* Quantizes weights[0 ... size) of `dtype`, in row-major order, by the rules of nibble/nf4.hpp, fp4.hpp and nested.hpp
 * (IEEE arithmetic, not the approximate reciprocal of bitsandbytes' CUDA kernel). Adds the number of blocks with a NaN
 * or an infinity to *nonfinite_blocks unless that is null. One launch, three if nested. */
NIBBLE_API int nibble_quantize_four_bit(const void* weights, nibble_dtype dtype, uint64_t size,
                                        const nibble_four_bit_output* out, uint64_t* nonfinite_blocks, void* workspace,
                                        size_t workspace_bytes, nibble_stream stream);

/* Quantizes a matrix [n, k] row by row by the rules of nibble/int8.hpp: codes (n * k) and absmax (n). Adds the
 * number of rows with a NaN, an infinity or a magnitude that fp16 cannot hold to *nonfinite_rows unless that is null. n
 * is at most 65535 * 2^30. */
NIBBLE_API int nibble_quantize_int8(const nibble_matrix* weights, int8_t* codes, float* absmax,
                                    uint64_t* nonfinite_rows, nibble_stream stream);

/* The 256 values of nested codes, ascending. Host memory. */
NIBBLE_API const float* nibble_nested_codebook(void);

/* --- matmul: products with quantized weights; for few rows of x, weights are never written to memory as floats -------
 */

/* The most weights in one call. */
#define NIBBLE_MATMUL_MAX_PRODUCTS 4

/* A nibble_matmul.min_library_m that is never reached: no library multiplies. */
#define NIBBLE_NO_LIBRARY UINT32_MAX

/* A weight [n, k] by which x is multiplied, and where the result goes. */
typedef struct nibble_four_bit_product {
  size_t struct_bytes; /* sizeof(nibble_four_bit_product); all products of a call have the same */
  const nibble_four_bit* weight;
  const void* bias;       /* n values of the compute type, or null */
  const nibble_matrix* y; /* [m, n], of the compute type or F32 */
} nibble_four_bit_product;

/* y = x * transposed(weight) + bias for each of the products, in one launch.
 *
 * The compute type is the type of x, or, if x is F32, `compute_dtype`: then x is first rounded to it. The values of the
 * codebook are rounded to it too. Products of the two are added in fp32; absmax multiplies sums of products that share
 * it; these sums, the bias and the old y are added in fp32, and y is rounded once (not at all if it is F32). The order
 * of additions depends only on shapes, alignment and whether the device has compute capability 9.0 and code for sm_90a:
 * others may give other bytes (docs/four-bit-matmul.md has the order and the error).
 *
 * It is fast if k, first, and stride are multiples of 64, blocksize is at least 64, packed is aligned to 8 bytes, and x
 * and its rows are aligned to 16 bytes. With multiples of 8, a blocksize of 32, or a packed that is aligned to 4
 * bytes, it takes more instructions; otherwise it is slow. Each further 64 rows of x (32 in the second case) read the
 * weight once more; devices of compute capability 9.0 take up to 128 rows at a time in the first case, if packed is
 * aligned to 16 bytes.
 *
 * From a few hundred rows on (`min_library_m`) and without experts, the weight is dequantized into the workspace, and
 * cuBLASLt multiplies x by it, if libcublasLt.so.13 or .12 can be loaded; several weights take turns. Then weights are
 * rounded to the compute type, and the order of additions is cuBLASLt's: the same input need not give the same bytes on
 * another kind of device, with another version of cuBLASLt, or without it. Where cuBLASLt cannot be loaded or refuses,
 * the product is done as for fewer rows. The first query or call of a process with so many rows loads the library, and
 * the first on a device makes a context of cuBLASLt there, which may allocate: before a call is captured into a graph,
 * ask for its workspace with its device as the current one. */
typedef struct nibble_matmul {
  size_t struct_bytes;    /* sizeof(nibble_matmul) */
  const nibble_matrix* x; /* [m, k], m less than 2^31 */
  const nibble_four_bit_product* products;
  uint32_t product_count; /* 1 to NIBBLE_MATMUL_MAX_PRODUCTS weights that share x, such as those of q, k and v. They
                             must have the same columns, codebook, blocksize and form of absmax */
  uint32_t experts;       /* 0, or the number of experts. There must be one weight, in which the weights [n, k] of the
                             experts follow each other, and no bias */
  const uint32_t* ends; /* with experts: expert e has the rows of x and y from ends[e - 1] (0 for the first) to ends[e];
                           tokens are sorted by expert. This is device memory, so the host need not wait for the router.
                           Rows after the last end are not written. An end above m counts as m */
  nibble_dtype compute_dtype; /* F16 or BF16 if x is F32; otherwise the type of x, or F32, which is ignored */
  int accumulate;             /* not 0: y += instead of y =, still rounded once */
  int weights_are_ready;  /* not 0: no work that may still be running on the stream writes the weights, which holds for
                             every call but the first after they were loaded. The launch then need not wait for the one
                             before to read codes (programmatic dependent launch, from sm_90 on) */
  uint32_t* counters;     /* NIBBLE_COUNTERS zeros, or null */
  uint32_t min_library_m; /* from so many rows of x on, a library may multiply (above): NIBBLE_NO_LIBRARY for never, 0
                             for what nibble takes to be faster */
  uint64_t max_panel_bytes; /* for a library: how much of the dequantized weight is in the workspace at a time, but at
                               least one row; 0 for 128 MiB */
} nibble_matmul;

/* Writes the bytes of workspace that the product needs to *bytes, which is host memory. Refuses what the product would
 * refuse. */
NIBBLE_API int nibble_matmul_four_bit_workspace(const nibble_matmul* matmul, size_t* bytes);
NIBBLE_API int nibble_matmul_four_bit(const nibble_matmul* matmul, void* workspace, size_t workspace_bytes,
                                      nibble_stream stream);

/* A weight [n, k] in LLM.int8() form that x is multiplied with, and where the result goes: as nibble_four_bit_product.
 */
typedef struct nibble_int8_product {
  size_t struct_bytes; /* sizeof(nibble_int8_product) */
  const nibble_int8* weight;
  const void* bias;
  const nibble_matrix* y;
} nibble_int8_product;

/* y = x * transposed(weight) + bias, for one product that is given besides `matmul`, whose `products` and `ends` are
 * null, and `product_count` and `experts` 0. Its other members mean what they mean above.
 *
 *   y[i][j] = round( (sum over l of x[i][l] * code[j][l]) * (absmax[j] / 127) + bias[j] + y[i][j] )
 *
 * Products of x and codes are exact, and added in fp32; the quotient, its product with the sum, and what is added are
 * each rounded to fp32, and the result once more to y (docs/int8-matmul.md). Sums of x times codes must stay below
 * fp32's largest value, 3.4e38.
 *
 * Fast where k is a multiple of 8, codes are aligned to 8 bytes, and x and its rows to 16. For m above 64 each 64 rows
 * read the weight again, until there are so many that a library multiplies by the dequantized weight, as above. */
NIBBLE_API int nibble_matmul_int8_workspace(const nibble_matmul* matmul, const nibble_int8_product* product,
                                            size_t* bytes);
NIBBLE_API int nibble_matmul_int8(const nibble_matmul* matmul, const nibble_int8_product* product, void* workspace,
                                  size_t workspace_bytes, nibble_stream stream);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-deprecated-headers, modernize-use-using) */
#endif
