/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks bring to a dispatch for high throughput. */
#ifndef MOEBIUS_TESTS_C_API_TOKENS_H_
#define MOEBIUS_TESTS_C_API_TOKENS_H_

#include "tests/c_api/check.h"

enum { R = 4, T = 6, H = 8, E = 8, L = E / R, K = 3 };

/* What a rank brings. */
typedef struct tokens {
  float x[T * H], weights[T * K];
  int32_t ids[T * K], tags[T];
  moebius_tensor t_x, t_weights, t_ids, t_tags;
  const moebius_tensor* payloads[2];
  moebius_dispatch_input input;
} tokens;

moebius_dlpack_arrays arrays_of(int num_arrays,
                                const char* const* names,
                                const int32_t* indices,
                                void** managed);
moebius_status dlpack_of(moebius_result result, const char* name, int32_t index, void** managed);
/* The experts of a token; every rank can compute those of all ranks. */
int id_of(int rank, int token, int k);
int goes_to(int rank, int token, int to);
/* A row says where it comes from. */
float value_of(int rank, int token, int h);
void make_tokens(tokens* my, int rank);

#endif
