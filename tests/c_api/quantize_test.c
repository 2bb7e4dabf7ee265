/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of quantized matrices, quantize and dequantize. */
#include <math.h>

#include "tests/c_api/check.h"

enum { M = 6, K = 64 };
static const moebius_device kCpu = {MOEBIUS_CPU, 0};

static moebius_quant_spec spec_of(int32_t format, int64_t group_rows, int64_t group_cols) {
  return (moebius_quant_spec){.struct_size = sizeof(moebius_quant_spec),
                              .format = format,
                              .group_rows = group_rows,
                              .group_cols = group_cols};
}

/* The tensors of a quantized matrix with their memory. */
typedef struct storage {
  moebius_tensor values, scale, zero_point, global_scale;
  int64_t memory[4][M * K / 2];
  moebius_quantized quantized;
} storage;

/* Asks for the shapes, and points the tensors that there are to memory. */
static void lay_out(storage* s, const moebius_quant_spec* spec) {
  moebius_tensor* const tensors[4] = {&s->values, &s->scale, &s->zero_point, &s->global_scale};
  s->quantized = (moebius_quantized){.struct_size = sizeof(s->quantized),
                                     .values = &s->values,
                                     .scale = &s->scale,
                                     .zero_point = &s->zero_point,
                                     .global_scale = &s->global_scale};
  for (int i = 0; i < 4; ++i) {
    *tensors[i] = (moebius_tensor){.struct_size = sizeof(moebius_tensor)};
  }
  CHECK_OK(moebius_quantized_shapes(spec, M, K, kCpu, &s->quantized));
  for (int i = 0; i < 4; ++i) {
    tensors[i]->data = s->memory[i];
  }
  if (s->zero_point.num_dims < 0) {
    s->quantized.zero_point = NULL;
  }
  if (s->global_scale.num_dims < 0) {
    s->quantized.global_scale = NULL;
  }
}

/* Every format comes back within half of its coarsest step, relative to the maximum of a group. */
static void check_round_trips(void) {
  static const struct {
    int32_t format;
    int64_t rows, cols;
    double step; /* of the largest value */
    int asymmetric, per_row;
  } kCases[] = {
      {MOEBIUS_FP8, -1, -1, 1. / 8, 0, 0},       {MOEBIUS_FP8, 1, -1, 1. / 8, 0, 0},
      {MOEBIUS_FP8, 1, 32, 1. / 8, 0, 0},        {MOEBIUS_FP8, 4, 32, 1. / 8, 0, 0},
      {MOEBIUS_INT8, -1, -1, 1. / 100, 0, 0},    {MOEBIUS_INT8, 1, 16, 1. / 60, 0, 0},
      {MOEBIUS_INT4, 1, 32, 1. / 6, 0, 0},       {MOEBIUS_INT4, 1, 32, 1. / 6, 1, 0},
      {MOEBIUS_MXFP4, 1, 32, 1. / 2, 0, 0},      {MOEBIUS_MXFP6_E3M2, 1, 32, 1. / 6, 0, 0},
      {MOEBIUS_MXFP6_E2M3, 1, 32, 1. / 6, 0, 0}, {MOEBIUS_MXFP8, 1, 32, 1. / 6, 0, 0},
      {MOEBIUS_NVFP4, 1, 16, 1. / 2, 0, 0},      {MOEBIUS_NVFP4, 1, 16, 1. / 2, 0, 1}};
  static float x[M * K], back[M * K];
  static storage s;
  fill(x, M * K, 1);
  const moebius_tensor tx = matrix_of(x, MOEBIUS_F32, M, K);
  const moebius_tensor tb = matrix_of(back, MOEBIUS_F32, M, K);
  for (size_t i = 0; i < sizeof(kCases) / sizeof(kCases[0]); ++i) {
    moebius_quant_spec spec = spec_of(kCases[i].format, kCases[i].rows, kCases[i].cols);
    spec.asymmetric = kCases[i].asymmetric;
    spec.global_scale_per_row = kCases[i].per_row;
    lay_out(&s, &spec);
    CHECK_EQ(s.zero_point.num_dims >= 0, kCases[i].asymmetric);
    CHECK_EQ(s.global_scale.num_dims >= 0, kCases[i].format == MOEBIUS_NVFP4);
    CHECK_OK(moebius_quantize(&tx, &spec, &s.quantized, NULL, NULL, NULL));
    memset(back, 0, sizeof(back));
    CHECK_OK(moebius_dequantize(&s.quantized, &spec, &tb, NULL));
    for (int j = 0; j < M * K; ++j) {
      CHECK_NEAR(back[j], x[j], kCases[i].step / 2);
    }
  }
}

/* int8 per token, by its definition: scale = max / 127, halves away from zero. */
static void check_int8(void) {
  static float x[M * K], back[M * K];
  static storage s;
  const moebius_quant_spec spec = spec_of(MOEBIUS_INT8, 1, -1);
  fill(x, M * K, 2);
  const moebius_tensor tx = matrix_of(x, MOEBIUS_F32, M, K);
  const moebius_tensor tb = matrix_of(back, MOEBIUS_F32, M, K);
  lay_out(&s, &spec);
  CHECK_EQ(s.values.dtype, MOEBIUS_I8);
  CHECK_EQ(s.values.shape[0], M);
  CHECK_EQ(s.values.shape[1], K);
  CHECK_EQ(s.scale.dtype, MOEBIUS_F32);
  CHECK_EQ(s.scale.shape[0], M);
  CHECK_EQ(s.scale.shape[1], 1);
  CHECK_OK(moebius_quantize(&tx, &spec, &s.quantized, NULL, NULL, NULL));
  CHECK_OK(moebius_dequantize(&s.quantized, &spec, &tb, NULL));
  for (int m = 0; m < M; ++m) {
    float max = 0;
    for (int k = 0; k < K; ++k) {
      max = fmaxf(max, fabsf(x[m * K + k]));
    }
    const float scale = ((float*)s.scale.data)[m];
    CHECK_NEAR(scale, max / 127, 1e-8);
    for (int k = 0; k < K; ++k) {
      const int8_t value = ((int8_t*)s.values.data)[m * K + k];
      const float exact = x[m * K + k] / scale;
      CHECK(fabsf((float)value - exact) <= 0.5001f);
      CHECK(back[m * K + k] == (float)value * scale);
    }
  }
  /* A scale that is given replaces the computed one, per tensor. */
  const moebius_quant_spec per_tensor = spec_of(MOEBIUS_INT8, -1, -1);
  float given = 0.25f;
  const moebius_tensor tg = vector_of(&given, MOEBIUS_F32, 1);
  lay_out(&s, &per_tensor);
  CHECK_OK(moebius_quantize(&tx, &per_tensor, &s.quantized, &tg, NULL, NULL));
  CHECK(((float*)s.scale.data)[0] == 0.25f);
  CHECK_EQ(((int8_t*)s.values.data)[0], (int)rintf(x[0] * 4));
}

static void check_misuse(void) {
  static float x[M * K], back[M * K];
  static storage s;
  const moebius_quant_spec good = spec_of(MOEBIUS_FP8, 1, -1);
  const moebius_tensor tx = matrix_of(x, MOEBIUS_F32, M, K);
  const moebius_tensor tb = matrix_of(back, MOEBIUS_F32, M, K);
  fill(x, M * K, 3);
  lay_out(&s, &good);
  const moebius_quantized q = s.quantized;
  CHECK_INVALID(moebius_quantized_shapes(NULL, M, K, kCpu, &q));
  CHECK_INVALID(moebius_quantized_shapes(&good, M, K, kCpu, NULL));
  CHECK_INVALID(moebius_quantized_shapes(&good, -1, K, kCpu, &q));
  CHECK_INVALID(moebius_quantized_shapes(&good, M, -1, kCpu, &q));
  CHECK_INVALID(moebius_quantized_shapes(&good, INT64_MAX, INT64_MAX, kCpu, &q));
  CHECK_INVALID(moebius_quantized_shapes(&good, M, K, (moebius_device){5, 0}, &q));
  CHECK_STRUCT_SIZES(moebius_quant_spec, good, moebius_quantized_shapes(given, M, K, kCpu, &q));
  CHECK_STRUCT_SIZES(moebius_quantized, q, moebius_quantized_shapes(&good, M, K, kCpu, given));
  /* Shapes are but numbers, however large. */
  CHECK_OK(moebius_quantized_shapes(&good, INT64_C(1) << 40, 1024, kCpu, &q));
  CHECK_EQ(s.values.shape[0], INT64_C(1) << 40);
  lay_out(&s, &good);
  const moebius_quantized none = {.struct_size = sizeof(none)};
  CHECK_OK(moebius_quantized_shapes(&good, M, K, kCpu, &none));

  moebius_quant_spec bad[10];
  for (int i = 0; i < 10; ++i) {
    bad[i] = good;
  }
  bad[0].format = MOEBIUS_NOT_QUANTIZED;
  bad[1].format = MOEBIUS_NVFP4 + 1;
  bad[2].format = -1;
  bad[3].group_rows = 0;
  bad[4].group_cols = 0;
  bad[5].group_cols = -7;
  bad[6].power_of_two_scale = 2;
  bad[7].asymmetric = 1;
  bad[8].global_scale_per_row = 1;
  bad[9].format = MOEBIUS_MXFP4; /* not of {1, 32} */
  for (int i = 0; i < 10; ++i) {
    CHECK_INVALID(moebius_quantized_shapes(&bad[i], M, K, kCpu, &q));
    CHECK_INVALID(moebius_quantize(&tx, &bad[i], &q, NULL, NULL, NULL));
    CHECK_INVALID(moebius_dequantize(&q, &bad[i], &tb, NULL));
  }

  memset(s.memory, 0x5a, sizeof(s.memory));
  CHECK_INVALID(moebius_quantize(NULL, &good, &q, NULL, NULL, NULL));
  CHECK_INVALID(moebius_quantize(&tx, NULL, &q, NULL, NULL, NULL));
  CHECK_INVALID(moebius_quantize(&tx, &good, NULL, NULL, NULL, NULL));
  CHECK_INVALID(moebius_quantize(&tx, &good, &none, NULL, NULL, NULL));
  s.scale.data = x + M; /* x is still read when scales are written */
  CHECK_INVALID(moebius_quantize(&tx, &good, &q, NULL, NULL, NULL));
  s.scale.data = s.memory[1];
  moebius_tensor over_codes = tb;
  over_codes.data = s.memory[0];
  CHECK_INVALID(moebius_dequantize(&q, &good, &over_codes, NULL));
  CHECK_INVALID(moebius_dequantize(NULL, &good, &tb, NULL));
  CHECK_INVALID(moebius_dequantize(&q, NULL, &tb, NULL));
  CHECK_INVALID(moebius_dequantize(&q, &good, NULL, NULL));
  CHECK_INVALID(moebius_dequantize(&none, &good, &tb, NULL));
  const moebius_tensor other = matrix_of(x, MOEBIUS_I32, M, K);
  const moebius_tensor fewer = matrix_of(x, MOEBIUS_F32, M, K - 1);
  const moebius_tensor flat = vector_of(x, MOEBIUS_F32, M * K);
  CHECK_INVALID(moebius_quantize(&other, &good, &q, NULL, NULL, NULL));
  CHECK_INVALID(moebius_quantize(&fewer, &good, &q, NULL, NULL, NULL));
  CHECK_INVALID(moebius_quantize(&flat, &good, &q, NULL, NULL, NULL));
  CHECK_INVALID(moebius_quantize(&tx, &good, &q, &tx, NULL, NULL)); /* per token has none */
  CHECK_INVALID(moebius_quantize(&tx, &good, &q, NULL, &tx, NULL));
  s.values = read_only(s.values);
  CHECK_INVALID(moebius_quantize(&tx, &good, &q, NULL, NULL, NULL));
  s.values.flags = 0;
  s.scale = read_only(s.scale);
  CHECK_INVALID(moebius_quantize(&tx, &good, &q, NULL, NULL, NULL));
  CHECK_EQ(((unsigned char*)s.memory)[0], 0x5a);
  s.scale.flags = 0;
  const moebius_tensor constant = read_only(tb);
  CHECK_OK(moebius_quantize(&tx, &good, &q, NULL, NULL, NULL));
  CHECK_INVALID(moebius_dequantize(&q, &good, &constant, NULL));
  CHECK_OK(moebius_dequantize(&q, &good, &tb, NULL));
}

void test_quantize(void) {
  check_round_trips();
  check_int8();
  check_misuse();
}
