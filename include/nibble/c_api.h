/* nibble as a C interface: libnibble.so, which the Python package loads and which any language with C calls can use.
 * The commands of `nibble`, codecs for arrays in ordinary memory, and the headers of checkpoints. nibble/kernels.h is
 * the interface of libnibble_cuda, for arrays in device memory.
 *
 * What holds for every function:
 *
 * - The result is NIBBLE_OK or the reason for the failure, with the values that are the exit codes of `nibble`
 *   (docs/exit-codes.md). After a failure, nibble_error_message() has one line that names the thing, the fact and the
 *   limit. Wrong arguments (null, unknown values, sizes that contradict each other or exceed 64 bits, misaligned
 *   arrays) are NIBBLE_USAGE, and nothing has been read or written then.
 * - Nothing is printed, no exception leaves, no signal handler, limit or locale of the process is changed, and the
 *   process is not ended.
 * - Texts are UTF-8 and end with a null byte. Names of tensors and paths are what the files have, which need not be
 *   UTF-8.
 * - Any number of threads may call at the same time.
 * - Structs that later versions may extend begin with struct_bytes; nibble/kernels.h has the rule.
 */
#ifndef NIBBLE_C_API_H
#define NIBBLE_C_API_H

/* C. NOLINTBEGIN(modernize-deprecated-headers, modernize-use-using) */

#include <stddef.h>
#include <stdint.h>

#include "nibble/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It increases when the arguments of a function change. A program that loads the library
 * at run time compares nibble_c_api_version() with it. */
#define NIBBLE_C_API_VERSION 1
NIBBLE_API int nibble_c_api_version(void);

/* "0.1.0" */
NIBBLE_API const char* nibble_version(void);

/* The results besides those of nibble_status (NIBBLE_OK, NIBBLE_INTERNAL, NIBBLE_USAGE). */
enum {
  NIBBLE_BAD_INPUT = 3,     /* not a checkpoint, damaged, or something that nibble refuses */
  NIBBLE_IO = 4,            /* the operating system refused to read or write */
  NIBBLE_NO_SPACE = 5,      /* not enough memory or disk space */
  NIBBLE_OUTPUT_EXISTS = 6, /* the output exists, or another nibble is writing it */
  NIBBLE_INPUT_CHANGED = 7, /* the input changed while it was read */
  NIBBLE_DIFFERENCE = 8,    /* a tensor's error exceeds a limit */
  NIBBLE_INTERRUPTED = 130  /* the caller asked for the end */
};

/* Why the last failed call of this thread failed, valid until another call of this thread fails. Empty before that. */
NIBBLE_API const char* nibble_error_message(void);

/* Frees a text that a function has allocated. Null is allowed. */
NIBBLE_API void nibble_free(char* text);

/* The CPU targets that codecs can run on, best first, separated by blanks ("AVX3 AVX2 SCALAR"), and the one in use. If
 * the environment variable NIBBLE_CPU_TARGET named another target when the library was first called, that is in use. */
NIBBLE_API int nibble_cpu_targets(char** targets, char** in_use);

/* The instructions that are used besides those of the CPU target, separated by blanks, or an empty text: of
 * "AVX512_VNNI AVX512_VBMI AVX512_BF16 AMX_BF16", those that the processor has, the target may use and the system
 * permits. */
NIBBLE_API int nibble_cpu_extensions(char** extensions);

/* --- commands: what `nibble` does ------------------------------------------------------------------------------- */

/* How a command tells its caller what it does, and how the caller stops it. All members but struct_bytes may be null.
 * Functions are called from one thread at a time, which need not be the caller's, and must return. */
typedef struct nibble_listener {
  size_t struct_bytes; /* sizeof(nibble_listener) */
  void* user;          /* passed to the functions */
  /* `done` of `total` bytes of the weights are done, `tensor` is the current one. Before it merges, `merge` hashes the
   * files of the adapter: these are bytes of its files then, and `tensor` is a file. Anything but 0 asks for the end. */
  int (*progress)(void* user, const char* tensor, uint64_t done, uint64_t total);
  /* A line for the user: "warning: ...". */
  void (*note)(void* user, const char* line);
  /* Asks for the end once it is not 0. Read again and again by any thread; may be set by any thread. */
  const int* cancel;
} nibble_listener;

/* Runs a command with --json, and returns what it prints: arguments are those of the command line after `nibble`, the
 * first is the command ("convert"). The texts of errors are those of the command line, too. A command that is stopped
 * leaves no output behind and returns NIBBLE_INTERRUPTED.
 *
 * *json is allocated (nibble_free), or null if nothing was printed. It may be there although the command has failed:
 * `measure` prints its report and then returns NIBBLE_DIFFERENCE. `json` itself may be null. With --help among the
 * arguments, it is the help.
 *
 * Memory: --max-memory counts on the settings of the allocator that `nibble` makes for itself (nibble/memory.hpp);
 * those of the host may take more. */
NIBBLE_API int nibble_command(int argument_count, const char* const* arguments, const nibble_listener* listener,
                              char** json);

/* All commands that nibble_command() runs, with their arguments and options, as a JSON object by name:
 *
 *   {"convert": {"summary": TEXT, "arguments": [OPTION, ...], "options": [OPTION, ...]}, ...}
 *   OPTION: {"name": TEXT, "help": TEXT, "takes_value": BOOL, "repeatable": BOOL, "required": BOOL,
 *            "values": [TEXT, ...]}    values: if only some words are allowed */
NIBBLE_API int nibble_list_commands(char** json);

/* --- arrays: codes from weights and back, in ordinary memory ------------------------------------------------------ */

/* An array. `bytes` has to be what the other arguments imply: sizes are compared before anything is written. `data` may
 * be null if `bytes` is 0. Arrays of fp32, fp16 and bf16 need the alignment of their type, except weights to be
 * quantized. Nothing may overlap what is written. */
typedef struct nibble_array {
  void* data;
  uint64_t bytes;
} nibble_array;

/* A weight in blocks of 4-bit codes; nibble_four_bit in nibble/kernels.h has the formulas. Elements are numbered in
 * row-major order, so its shape does not matter. The form is nested if absmax_codes.data is not null. Then `absmax` is
 * empty; otherwise the four nested members are. */
typedef struct nibble_cpu_four_bit {
  size_t struct_bytes; /* sizeof(nibble_cpu_four_bit) */
  int32_t codebook;    /* a nibble_codebook */
  uint32_t blocksize;  /* 32, 64, ..., 4096 weights per absmax */
  uint64_t elements;
  nibble_array packed;          /* ceil(elements / 2) bytes; element 2i is the high nibble of byte i */
  nibble_array absmax;          /* fp32: one per block */
  nibble_array absmax_codes;    /* one byte per block */
  nibble_array nested_absmax;   /* fp32: one per 256 blocks */
  nibble_array nested_codebook; /* fp32: 256 values */
  nibble_array nested_offset;   /* fp32: one value */
} nibble_cpu_four_bit;

/* Quantizes weights of `dtype` (a nibble_dtype) into the arrays of `out`, by the rules of nibble/nf4.hpp, fp4.hpp and
 * nested.hpp: the bytes of `nibble convert`, for any number of threads. Reads the weights once. Of the nested form,
 * nested_codebook is written too.
 *
 * If *nonfinite_blocks comes out as more than 0, so many blocks have a NaN, which counts as 0, or an infinity, which
 * counts as the largest finite magnitude of the block. The pointer may be null.
 *
 * At most `threads` threads; 0: one for each processor that this process may use. */
NIBBLE_API int nibble_cpu_quantize_4bit(nibble_array weights, int32_t dtype, const nibble_cpu_four_bit* out,
                                        uint32_t threads, uint64_t* nonfinite_blocks);

/* Dequantizes into `weights`, elements of `dtype`, each rounded once to nearest even from the fp32 value. Asks the
 * system for huge pages there (madvise), because page faults of fresh memory would take most of the time. */
NIBBLE_API int nibble_cpu_dequantize_4bit(const nibble_cpu_four_bit* in, nibble_array weights, int32_t dtype,
                                          uint32_t threads);

/* A weight [rows, columns] in LLM.int8() form; nibble_int8 in nibble/kernels.h has the formula. */
typedef struct nibble_cpu_int8 {
  size_t struct_bytes; /* sizeof(nibble_cpu_int8) */
  uint64_t rows, columns;
  nibble_array codes;  /* rows * columns signed bytes */
  nibble_array absmax; /* fp32: one per row. bitsandbytes calls it SCB */
} nibble_cpu_int8;

/* The same for int8, by the rules of nibble/int8.hpp. *nonfinite_rows counts rows with a NaN, an infinity, or a
 * magnitude that fp16 cannot hold. */
NIBBLE_API int nibble_cpu_quantize_int8(nibble_array weights, int32_t dtype, const nibble_cpu_int8* out,
                                        uint32_t threads, uint64_t* nonfinite_rows);
NIBBLE_API int nibble_cpu_dequantize_int8(const nibble_cpu_int8* in, nibble_array weights, int32_t dtype,
                                          uint32_t threads);

/* --- checkpoints: where their tensors are, so that a program can map them ----------------------------------------- */

/* The most dimensions of a tensor. */
#define NIBBLE_MAX_DIMENSIONS 64

typedef struct nibble_checkpoint nibble_checkpoint;

/* A tensor as the files have it: of a weight that is quantized, its parts. Texts are valid until the checkpoint is
 * closed. */
typedef struct nibble_tensor {
  size_t struct_bytes; /* sizeof(nibble_tensor) */
  const char* name;    /* ends with a null byte, and may have others */
  uint64_t name_bytes; /* without it */
  const char* dtype;   /* as in a safetensors header: "BF16" */
  uint32_t bits;       /* of an element; F4 and F6 have fewer than 8 */
  uint32_t dimensions;
  uint64_t shape[NIBBLE_MAX_DIMENSIONS];
  const char* file; /* the path of its file */
  uint64_t offset;  /* in the file */
  uint64_t bytes;   /* the file has at least offset + bytes */
} nibble_tensor;

/* Opens a file, a model directory, or the name of a model in the local Hugging Face cache, plain or quantized, as
 * `nibble inspect` does: headers are read and checked. Takes at most max_memory bytes; 0 stands for 1e9. */
NIBBLE_API int nibble_checkpoint_open(const char* path, uint64_t max_memory, nibble_checkpoint** checkpoint);

/* The number of tensors; 0 for null and for a handle that is not open. */
NIBBLE_API uint64_t nibble_checkpoint_count(const nibble_checkpoint* checkpoint);

/* Tensor number `index`, in the order in which they are in the files. A handle that is not open, such as one that was
 * closed, is NIBBLE_USAGE. */
NIBBLE_API int nibble_checkpoint_tensor(const nibble_checkpoint* checkpoint, uint64_t index, nibble_tensor* tensor);

/* Null and handles that are not open are allowed. */
NIBBLE_API void nibble_checkpoint_close(nibble_checkpoint* checkpoint);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-deprecated-headers, modernize-use-using) */
#endif
