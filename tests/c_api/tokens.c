/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/c_api/tokens.h"

moebius_dlpack_arrays arrays_of(int num_arrays,
                                const char* const* names,
                                const int32_t* indices,
                                void** managed) {
  return (moebius_dlpack_arrays){.struct_size = sizeof(moebius_dlpack_arrays),
                                 .num_arrays = num_arrays,
                                 .names = names,
                                 .indices = indices,
                                 .managed = managed};
}

moebius_status dlpack_of(moebius_result result, const char* name, int32_t index, void** managed) {
  const moebius_dlpack_arrays arrays = arrays_of(1, &name, &index, managed);
  return moebius_result_dlpack(result, &arrays);
}

int id_of(int rank, int token, int k) {
  return pick((uint32_t)((rank * T + token) * K + k), E + 1) - 1;
}
int goes_to(int rank, int token, int to) {
  for (int k = 0; k < K; ++k) {
    const int id = id_of(rank, token, k);
    if (id >= 0 && id / L == to) {
      return 1;
    }
  }
  return 0;
}

float value_of(int rank, int token, int h) {
  return (float)(100 * rank + token) + (float)h / 8;
}

void make_tokens(tokens* my, int rank) {
  memset(my, 0, sizeof(*my));
  for (int t = 0; t < T; ++t) {
    my->tags[t] = 1000 * rank + t;
    for (int h = 0; h < H; ++h) {
      my->x[t * H + h] = value_of(rank, t, h);
    }
    for (int k = 0; k < K; ++k) {
      my->ids[t * K + k] = id_of(rank, t, k);
      my->weights[t * K + k] = (float)(rank + t + k);
    }
  }
  my->t_x = matrix_of(my->x, MOEBIUS_F32, T, H);
  my->t_weights = matrix_of(my->weights, MOEBIUS_F32, T, K);
  my->t_ids = matrix_of(my->ids, MOEBIUS_I32, T, K);
  my->t_tags = vector_of(my->tags, MOEBIUS_I32, T);
  my->payloads[0] = &my->t_x;
  my->payloads[1] = &my->t_tags;
  my->input = (moebius_dispatch_input){.struct_size = sizeof(my->input),
                                       .payloads = my->payloads,
                                       .num_payloads = 2,
                                       .topk_ids = &my->t_ids,
                                       .topk_weights = &my->t_weights};
}
