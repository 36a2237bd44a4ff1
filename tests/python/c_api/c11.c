/* The header is C, and libnibble.so is all that a program in C needs: quantizes a matrix, dequantizes it, reads what a
 * wrong call said. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nibble/c_api.h"

enum { ELEMENTS = 4096, BLOCKSIZE = 64 };

static int failed(const char* what) {
  fprintf(stderr, "error: %s: %s\n", what, nibble_error_message());
  return 1;
}

int main(void) {
  static float weights[ELEMENTS], decoded[ELEMENTS], absmax[ELEMENTS / BLOCKSIZE];
  static unsigned char packed[ELEMENTS / 2];
  nibble_cpu_four_bit weight = {.struct_bytes = sizeof weight, .codebook = NIBBLE_NF4, .blocksize = BLOCKSIZE};
  uint64_t nonfinite = 1;
  char *commands = NULL, *json = NULL;
  const char* const words[] = {"formats"};

  if (nibble_c_api_version() != NIBBLE_C_API_VERSION) return failed("the library has another version");
  for (int i = 0; i < ELEMENTS; ++i) weights[i] = (float)(i % 101 - 50) / 50.0f;
  weight.elements = ELEMENTS;
  weight.packed = (nibble_array){packed, sizeof packed};
  weight.absmax = (nibble_array){absmax, sizeof absmax};
  if (nibble_cpu_quantize_4bit((nibble_array){weights, sizeof weights}, NIBBLE_F32, &weight, 0, &nonfinite) != NIBBLE_OK)
    return failed("quantize");
  if (nonfinite != 0) return failed("a finite weight was not");
  if (nibble_cpu_dequantize_4bit(&weight, (nibble_array){decoded, sizeof decoded}, NIBBLE_F32, 0) != NIBBLE_OK)
    return failed("dequantize");
  /* Half of the widest gap between two values of NF4, whose absmax is at most 1. */
  for (int i = 0; i < ELEMENTS; ++i)
    if (fabsf(decoded[i] - weights[i]) > 0.1521f) return failed("a weight is too far off");

  if (nibble_list_commands(&commands) != NIBBLE_OK || strstr(commands, "\"convert\"") == NULL) return failed("commands");
  if (nibble_command(1, words, NULL, &json) != NIBBLE_OK || strstr(json, "\"nf4\"") == NULL) return failed("formats");
  nibble_free(commands);
  nibble_free(json);

  weight.blocksize = 65;
  if (nibble_cpu_dequantize_4bit(&weight, (nibble_array){decoded, sizeof decoded}, NIBBLE_F32, 0) != NIBBLE_USAGE)
    return failed("a blocksize of 65 was accepted");
  printf("nibble %s: %s\n", nibble_version(), nibble_error_message());
  return 0;
}
