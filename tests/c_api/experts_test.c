/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Experts against a scalar loop: standard and batched, with a map, biases, adapters, int8. */
#include "tests/c_api/experts_model.h"

static void check_standard(int32_t lends_weights, const char* implementation) {
  static model m;
  make_model(&m);
  moebius_experts experts = NULL;
  moebius_stream stream = NULL;
  CHECK_OK(moebius_stream_cpu(2, &stream));
  m.options.lends_weights = lends_weights;
  m.options.implementation = implementation;
  CHECK_OK(moebius_experts_create(&m.weights, &m.options, stream, &experts));
  moebius_experts_info info = {.struct_size = sizeof(info)};
  CHECK_OK(moebius_experts_get_info(experts, &info));
  CHECK_EQ(info.num_experts, E);
  CHECK_EQ(info.num_local_experts, L);
  CHECK_EQ(info.topk, K);
  CHECK_EQ(info.hidden, H);
  CHECK_EQ(info.intermediate, I);
  CHECK_EQ(info.in_dtype, MOEBIUS_F32);
  CHECK_EQ(info.format, MOEBIUS_STANDARD);
  CHECK_EQ(info.retains_weights, lends_weights);
  if (implementation != NULL) {
    CHECK_TEXT(info.name, implementation);
  }
  CHECK_OK(moebius_experts_forward(experts, &m.t_hidden, &m.t_ids, &m.t_weights, &m.t_map,
                                   &m.t_output, stream));
  check_output(&m);
  memset(m.output, 0, sizeof(m.output));
  CHECK_OK(moebius_experts_forward(experts, &m.t_hidden, &m.t_wide_ids, &m.t_weights, &m.t_map,
                                   &m.t_output, stream));
  check_output(&m);

  /* The same as rows of a dispatch. */
  memset(m.output, 0, sizeof(m.output));
  const moebius_experts_input rows = {.struct_size = sizeof(rows),
                                      .x = &m.t_hidden,
                                      .topk_ids = &m.t_ids,
                                      .topk_weights = &m.t_weights,
                                      .expert_map = &m.t_map};
  CHECK_OK(moebius_experts_apply(experts, &rows, &m.t_output, stream));
  check_output(&m);

  /* Every second row of a wider matrix. */
  static float wide[T * 2 * (H + 8)];
  moebius_tensor strided = matrix_of(wide + 4, MOEBIUS_F32, T, H);
  strided.strides[0] = 2 * (H + 8);
  strided.strides[1] = 1;
  for (int t = 0; t < T; ++t) {
    memcpy(wide + 4 + t * 2 * (H + 8), m.hidden + t * H, H * sizeof(float));
  }
  memset(m.output, 0, sizeof(m.output));
  CHECK_OK(moebius_experts_forward(experts, &strided, &m.t_ids, &m.t_weights, &m.t_map, &m.t_output,
                                   stream));
  check_output(&m);
  CHECK_INVALID(moebius_experts_forward(experts, &m.t_hidden, &m.t_ids, &m.t_weights, &m.t_map,
                                        &strided, stream));

  /* New values in place. */
  fill(m.w2, L * H * I, 77);
  const moebius_expert_weights second = {
      .struct_size = sizeof(second), .w1 = &m.t_w1, .w2 = &m.t_w2};
  CHECK_OK(moebius_experts_update(experts, &second, stream));
  CHECK_OK(moebius_experts_forward(experts, &m.t_hidden, &m.t_ids, &m.t_weights, &m.t_map,
                                   &m.t_output, stream));
  check_output(&m);
  CHECK_OK(moebius_experts_destroy(experts));
  CHECK_OK(moebius_stream_destroy(stream));
}

static void check_batched(void) {
  static model m;
  static float x[L * ROWS * H], output[L * ROWS * H];
  int32_t counts[L] = {ROWS, 0, 2};
  make_model(&m);
  m.options.format = MOEBIUS_BATCHED;
  moebius_experts experts = NULL;
  CHECK_OK(moebius_experts_create(&m.weights, &m.options, NULL, &experts));
  moebius_experts_info info = {.struct_size = sizeof(info)};
  CHECK_OK(moebius_experts_get_info(experts, &info));
  CHECK_EQ(info.format, MOEBIUS_BATCHED);
  fill(x, L * ROWS * H, 8);
  for (int i = 0; i < L * ROWS * H; ++i) {
    output[i] = 123;
  }
  const moebius_tensor tx = cube_of(x, MOEBIUS_F32, L, ROWS, H);
  const moebius_tensor to = cube_of(output, MOEBIUS_F32, L, ROWS, H);
  const moebius_tensor tc = vector_of(counts, MOEBIUS_I32, L);
  moebius_experts_input input = {.struct_size = sizeof(input), .x = &tx, .expert_num_tokens = &tc};
  CHECK_OK(moebius_experts_apply(experts, &input, &to, NULL));
  const experts_values values = {m.w1, m.w2, H, I};
  for (int e = 0; e < L; ++e) {
    for (int r = 0; r < ROWS; ++r) {
      double expected[H] = {0};
      add_expert(&values, e, x + (e * ROWS + r) * H, 1, expected);
      for (int h = 0; h < H; ++h) { /* rows past the count are not written */
        CHECK_NEAR(output[(e * ROWS + r) * H + h], r < counts[e] ? expected[h] : 123, 1e-4);
      }
    }
  }
  CHECK_INVALID(moebius_experts_apply(experts, &input, &tx, NULL)); /* rows are still read */
  counts[1] = ROWS + 1;
  CHECK_INVALID(moebius_experts_apply(experts, &input, &to, NULL));
  counts[1] = -1;
  CHECK_INVALID(moebius_experts_apply(experts, &input, &to, NULL));
  counts[1] = 0;
  input.x = &m.t_hidden;
  CHECK_INVALID(moebius_experts_apply(experts, &input, &to, NULL));
  input.x = &tx;
  input.expert_num_tokens = NULL;
  CHECK_INVALID(moebius_experts_apply(experts, &input, &to, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, &m.t_hidden, &m.t_ids, &m.t_weights, &m.t_map,
                                        &m.t_output, NULL));
  CHECK_OK(moebius_experts_update(experts, &m.weights, NULL));
  CHECK_OK(moebius_experts_destroy(experts));
}

/* Biases and one adapter, with relu2, which has no gate: w1 is [1, I, H]. */
static void check_bias_and_lora(void) {
  enum { RANK = 2 };
  static float w1[I * H], w2[H * I], b1[I], b2[H], x[T * H], out[T * H], one[T];
  static float a1[RANK * H], c1[I * RANK], a2[RANK * I], c2[H * RANK], scaling[1] = {0.5f};
  static int32_t ids[T], lora_ids[T];
  fill(w1, I * H, 1);
  fill(w2, H * I, 2);
  fill(b1, I, 3);
  fill(b2, H, 4);
  fill(x, T * H, 5);
  fill(a1, RANK * H, 6);
  fill(c1, I * RANK, 7);
  fill(a2, RANK * I, 8);
  fill(c2, H * RANK, 9);
  for (int t = 0; t < T; ++t) {
    one[t] = 1;
    lora_ids[t] = t % 2 - 1; /* every second token has the adapter */
  }
  const moebius_tensor t1 = cube_of(w1, MOEBIUS_F32, 1, I, H),
                       t2 = cube_of(w2, MOEBIUS_F32, 1, H, I);
  const moebius_tensor tb1 = matrix_of(b1, MOEBIUS_F32, 1, I),
                       tb2 = matrix_of(b2, MOEBIUS_F32, 1, H);
  moebius_tensor ta1 = cube_of(a1, MOEBIUS_F32, 1, 1, RANK),
                 tc1 = cube_of(c1, MOEBIUS_F32, 1, 1, I);
  moebius_tensor ta2 = cube_of(a2, MOEBIUS_F32, 1, 1, RANK),
                 tc2 = cube_of(c2, MOEBIUS_F32, 1, 1, H);
  ta1.num_dims = tc1.num_dims = ta2.num_dims = tc2.num_dims = 4;
  ta1.shape[3] = H;
  tc1.shape[3] = RANK;
  ta2.shape[3] = I;
  tc2.shape[3] = RANK;
  const moebius_tensor ts = vector_of(scaling, MOEBIUS_F32, 1);
  const moebius_lora_weights lora = {.struct_size = sizeof(lora),
                                     .w1_a = &ta1,
                                     .w1_b = &tc1,
                                     .w2_a = &ta2,
                                     .w2_b = &tc2,
                                     .scaling = &ts};
  const moebius_quant_operand q1 = {.struct_size = sizeof(q1), .bias = &tb1};
  const moebius_quant_operand q2 = {.struct_size = sizeof(q2), .bias = &tb2};
  const moebius_expert_weights weights = {.struct_size = sizeof(weights),
                                          .w1 = &t1,
                                          .w2 = &t2,
                                          .quant_w1 = &q1,
                                          .quant_w2 = &q2,
                                          .lora = &lora};
  const moebius_activation relu2 = {
      .struct_size = sizeof(relu2), .kind = MOEBIUS_RELU2, .is_not_gated = 1};
  const moebius_experts_options options = {
      .struct_size = sizeof(options), .topk = 1, .in_dtype = MOEBIUS_F32, .activation = &relu2};
  moebius_experts experts = NULL;
  CHECK_OK(moebius_experts_create(&weights, &options, NULL, &experts));
  const moebius_tensor tx = matrix_of(x, MOEBIUS_F32, T, H), to = matrix_of(out, MOEBIUS_F32, T, H);
  const moebius_tensor ti = matrix_of(ids, MOEBIUS_I32, T, 1),
                       tw = matrix_of(one, MOEBIUS_F32, T, 1);
  const moebius_tensor tl = vector_of(lora_ids, MOEBIUS_I32, T);
  moebius_experts_input input = {.struct_size = sizeof(input),
                                 .x = &tx,
                                 .topk_ids = &ti,
                                 .topk_weights = &tw,
                                 .lora_ids = &tl};
  CHECK_OK(moebius_experts_apply(experts, &input, &to, NULL));
  for (int t = 0; t < T; ++t) {
    const double s = lora_ids[t] == 0 ? 0.5 : 0;
    double act[I], y;
    for (int i = 0; i < I; ++i) {
      y = (double)b1[i];
      for (int h = 0; h < H; ++h) {
        double w = (double)w1[i * H + h];
        for (int r = 0; r < RANK; ++r) {
          w += s * (double)c1[i * RANK + r] * (double)a1[r * H + h];
        }
        y += w * (double)x[t * H + h];
      }
      act[i] = y > 0 ? y * y : 0;
    }
    for (int h = 0; h < H; ++h) {
      y = (double)b2[h];
      for (int i = 0; i < I; ++i) {
        double w = (double)w2[h * I + i];
        for (int r = 0; r < RANK; ++r) {
          w += s * (double)c2[h * RANK + r] * (double)a2[r * I + i];
        }
        y += w * act[i];
      }
      CHECK_NEAR(out[t * H + h], y, 2e-3);
    }
  }
  lora_ids[0] = 1;
  CHECK_INVALID(moebius_experts_apply(experts, &input, &to, NULL));
  CHECK_OK(moebius_experts_destroy(experts));
}

/* int8 weights with a scale per row, as moebius_quantize makes them, compute on what they say. */
static void check_quantized(void) {
  static model m;
  static int8_t q1[L * 2 * I * H], q2[L * H * I];
  static float s1[L * 2 * I], s2[L * H];
  make_model(&m);
  const moebius_quant_spec spec = {
      .struct_size = sizeof(spec), .format = MOEBIUS_INT8, .group_rows = 1, .group_cols = -1};
  const moebius_tensor flat1 = matrix_of(m.w1, MOEBIUS_F32, L * 2 * I, H);
  const moebius_tensor flat2 = matrix_of(m.w2, MOEBIUS_F32, L * H, I);
  moebius_tensor v1 = matrix_of(q1, MOEBIUS_I8, L * 2 * I, H),
                 c1 = matrix_of(s1, MOEBIUS_F32, L * 2 * I, 1);
  moebius_tensor v2 = matrix_of(q2, MOEBIUS_I8, L * H, I),
                 c2 = matrix_of(s2, MOEBIUS_F32, L * H, 1);
  const moebius_quantized out1 = {.struct_size = sizeof(out1), .values = &v1, .scale = &c1};
  const moebius_quantized out2 = {.struct_size = sizeof(out2), .values = &v2, .scale = &c2};
  CHECK_OK(moebius_quantize(&flat1, &spec, &out1, NULL, NULL, NULL));
  CHECK_OK(moebius_quantize(&flat2, &spec, &out2, NULL, NULL, NULL));
  CHECK_OK(moebius_dequantize(&out1, &spec, &flat1, NULL));
  CHECK_OK(moebius_dequantize(&out2, &spec, &flat2, NULL));
  const moebius_tensor w1 = cube_of(q1, MOEBIUS_I8, L, 2 * I, H),
                       w2 = cube_of(q2, MOEBIUS_I8, L, H, I);
  const moebius_tensor k1 = cube_of(s1, MOEBIUS_F32, L, 2 * I, 1),
                       k2 = cube_of(s2, MOEBIUS_F32, L, H, 1);
  moebius_quant_operand d1 = {.struct_size = sizeof(d1),
                              .format = MOEBIUS_INT8,
                              .group_rows = 1,
                              .group_cols = -1,
                              .scale = &k1};
  moebius_quant_operand d2 = d1;
  d2.scale = &k2;
  const moebius_expert_weights weights = {
      .struct_size = sizeof(weights), .w1 = &w1, .w2 = &w2, .quant_w1 = &d1, .quant_w2 = &d2};
  moebius_experts experts = NULL, untouched = UNTOUCHED;
  CHECK_OK(moebius_experts_create(&weights, &m.options, NULL, &experts));
  CHECK_OK(moebius_experts_forward(experts, &m.t_hidden, &m.t_ids, &m.t_weights, &m.t_map,
                                   &m.t_output, NULL));
  check_output(&m);
  CHECK_OK(moebius_experts_destroy(experts));
  d1.format = 9;
  CHECK_INVALID(moebius_experts_create(&weights, &m.options, NULL, &untouched));
  d1.format = MOEBIUS_INT8;
  d1.group_cols = -5;
  CHECK_INVALID(moebius_experts_create(&weights, &m.options, NULL, &untouched));
  d1.group_rows = 1;
  d1.group_cols = 0;
  CHECK_INVALID(moebius_experts_create(&weights, &m.options, NULL, &untouched));
  d1.group_cols = -1;
  d1.scale = NULL;
  CHECK_INVALID(moebius_experts_create(&weights, &m.options, NULL, &untouched));
  d1.struct_size = 3;
  CHECK_INVALID(moebius_experts_create(&weights, &m.options, NULL, &untouched));
  CHECK(untouched == UNTOUCHED);
}

void test_experts(void) {
  check_standard(0, NULL);
  check_standard(1, NULL);
  check_standard(0, "ref");
  check_batched();
  check_bias_and_lora();
  check_quantized();
}
