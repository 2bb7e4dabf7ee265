/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layer: runs one MoE layer of a checkpoint.  The argument is a Hugging Face model folder; without
 * it a tiny synthetic model is written first.
 */
#include <stdio.h>
#include <stdlib.h>

#include "moebius_c.h"

/* Ends the program with the message of a call that has failed. */
static void check(moebius_status status) {
  if (status != MOEBIUS_OK) {
    moebius_error_info error = {.struct_size = sizeof(error)};
    moebius_last_error(&error);
    fprintf(stderr, "%s: %s\n", moebius_status_name(status), error.message);
    exit(1);
  }
}

/* A view of rows of f32 in memory of ours. */
static moebius_tensor rows_of(float* data, int64_t num_rows, int64_t row_size) {
  return (moebius_tensor){.struct_size = sizeof(moebius_tensor),
                          .data = data,
                          .dtype = MOEBIUS_F32,
                          .num_dims = 2,
                          .shape = {num_rows, row_size}};
}

int main(int argc, char** argv) {
  const int64_t num_tokens = 4;
  const char* folder = "/tmp/moebius_c_example";
  if (argc > 1) {
    folder = argv[1];
  } else {
    check(moebius_make_model("tiny", 1, NULL, 0, folder, NULL));
  }

  /* The first layer of the model that has experts, on the CPU. */
  moebius_checkpoint checkpoint;
  moebius_layer layer;
  moebius_layer_info info = {.struct_size = sizeof(info)};
  check(moebius_checkpoint_open(folder, &checkpoint));
  check(moebius_layer_load(checkpoint, -1, NULL, NULL, NULL, NULL, &layer));
  check(moebius_layer_get_info(layer, &info));

  float* hidden = calloc((size_t)(num_tokens * info.hidden), sizeof(float));
  float* output = calloc((size_t)(num_tokens * info.hidden), sizeof(float));
  hidden[0] = 1;
  const moebius_tensor in = rows_of(hidden, num_tokens, info.hidden);
  const moebius_tensor out = rows_of(output, num_tokens, info.hidden);
  const moebius_layer_input input = {.struct_size = sizeof(input), .hidden = &in};
  check(moebius_layer_forward(layer, &input, &out, NULL));
  printf("%lld experts by %s: output[0, 0] = %g\n", (long long)info.num_experts, info.experts,
         (double)output[0]);

  const int is_right = output[0] != 0;
  check(moebius_layer_destroy(layer));
  check(moebius_checkpoint_destroy(checkpoint));
  free(hidden);
  free(output);
  return is_right ? 0 : 1;
}
