/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that are refused, and arguments that their calls refuse. */
#include "tests/c_api/experts_model.h"

static void check_refused_options(model* m, moebius_experts* untouched) {
  moebius_experts_options bad[15];
  moebius_activation activation = {.struct_size = sizeof(activation), .kind = 6};
  for (int i = 0; i < 15; ++i) {
    bad[i] = m->options;
  }
  bad[0].num_experts = -1;
  bad[1].num_experts = L - 1;
  bad[2].topk = 0;
  bad[3].topk = -1;
  bad[4].topk = E + 1;
  bad[5].in_dtype = MOEBIUS_I8;
  bad[6].in_dtype = 15;
  bad[7].in_dtype = -1;
  bad[8].format = 2;
  bad[9].format = -1;
  bad[10].lends_weights = 2;
  bad[11].activation = &activation;
  bad[12].struct_size = sizeof(bad[12]) + 5000;
  bad[13].implementation = "teleport";
  bad[14].num_experts = INT64_MAX;
  for (int i = 0; i < 15; ++i) {
    CHECK_INVALID(moebius_experts_create(&m->weights, &bad[i], NULL, untouched));
  }
  bad[0] = m->options;
  bad[0].activation = &activation;
  for (int i = 0; i < 4; ++i) {
    activation = (moebius_activation){.struct_size = sizeof(activation)};
    activation.kind = i == 0 ? -1 : MOEBIUS_SILU;
    activation.is_not_gated = i == 1 ? 2 : 0;
    activation.interleaved = i == 2 ? -1 : 0;
    activation.struct_size -= i == 3 ? 1 : 0;
    CHECK_INVALID(moebius_experts_create(&m->weights, &bad[0], NULL, untouched));
  }
}

/* Structs that others point to are checked as those that are given. */
static void check_nested_structs(void) {
  static model m;
  moebius_experts experts = NULL;
  const moebius_activation activation = {.struct_size = sizeof(activation)};
  const moebius_quant_operand operand = {.struct_size = sizeof(operand)};
  const moebius_lora_weights lora = {.struct_size = sizeof(lora)};
  make_model(&m);
  CHECK_STRUCT_SIZES(moebius_activation, activation,
                     (m.options.activation = given,
                      moebius_experts_create(&m.weights, &m.options, NULL, &experts)));
  m.options.activation = NULL;
  CHECK_OK(moebius_experts_destroy(experts));
  CHECK_STRUCT_SIZES(
      moebius_quant_operand, operand,
      (m.weights.quant_w1 = given, moebius_experts_create(&m.weights, &m.options, NULL, &experts)));
  m.weights.quant_w1 = NULL;
  CHECK_OK(moebius_experts_destroy(experts));
  CHECK_STRUCT_SIZES(
      moebius_lora_weights, lora,
      (m.weights.lora = given, moebius_experts_create(&m.weights, &m.options, NULL, &experts)));
  CHECK_OK(moebius_experts_destroy(experts));
}

void test_experts_misuse(void) {
  static model m;
  make_model(&m);
  moebius_experts experts = NULL, untouched = UNTOUCHED;
  moebius_workspaces other = NULL;
  CHECK_OK(moebius_workspaces_create(&other));
  check_refused_options(&m, &untouched);
  CHECK_INVALID(moebius_experts_create(NULL, &m.options, NULL, &untouched));
  CHECK_INVALID(moebius_experts_create(&m.weights, NULL, NULL, &untouched));
  CHECK_INVALID(moebius_experts_create(&m.weights, &m.options, NULL, NULL));
  moebius_expert_weights weights = m.weights;
  weights.w1 = NULL;
  CHECK_INVALID(moebius_experts_create(&weights, &m.options, NULL, &untouched));
  weights.w1 = &m.t_w2; /* of other shapes */
  CHECK_INVALID(moebius_experts_create(&weights, &m.options, NULL, &untouched));
  weights.w1 = &m.t_hidden;
  CHECK_INVALID(moebius_experts_create(&weights, &m.options, NULL, &untouched));
  weights = m.weights;
  weights.w2 = NULL;
  CHECK_INVALID(moebius_experts_create(&weights, &m.options, NULL, &untouched));
  CHECK(untouched == UNTOUCHED);
  CHECK_BAD_OPTIONAL(moebius_stream, other,
                     moebius_experts_create(&m.weights, &m.options, handle, &untouched));
  const moebius_expert_weights good = m.weights;
  CHECK_STRUCT_SIZES(moebius_expert_weights, good,
                     (moebius_experts_destroy(experts), experts = NULL,
                      moebius_experts_create(given, &m.options, NULL, &experts)));
  const moebius_experts_options options = m.options;
  CHECK_STRUCT_SIZES(moebius_experts_options, options,
                     (moebius_experts_destroy(experts), experts = NULL,
                      moebius_experts_create(&m.weights, given, NULL, &experts)));

  CHECK_FILLED_STRUCT(moebius_experts_info, moebius_experts_get_info(experts, given));
  moebius_experts_info info = {.struct_size = sizeof(info)};
  const moebius_tensor *h = &m.t_hidden, *i = &m.t_ids, *w = &m.t_weights, *map = &m.t_map;
  const moebius_tensor* o = &m.t_output;
  for (int j = 0; j < T * H; ++j) {
    m.output[j] = 55;
  }
  const moebius_tensor constant = read_only(m.t_output);
  moebius_tensor apart = m.t_output;
  apart.strides[0] = 1;
  apart.strides[1] = T;
  const moebius_tensor shorter = matrix_of(m.hidden, MOEBIUS_F32, T - 1, H);
  const moebius_tensor bf16 = matrix_of(m.hidden, MOEBIUS_BF16, T, H);
  const moebius_tensor short_map = vector_of(m.map, MOEBIUS_I32, E - 1);
  CHECK_INVALID(moebius_experts_forward(experts, NULL, i, w, map, o, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, h, NULL, w, map, o, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, h, i, NULL, map, o, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, h, i, w, map, NULL, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, h, i, w, map, &constant, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, h, i, w, map, &apart, NULL));
  moebius_error_info error = {.struct_size = sizeof(error)};
  CHECK_OK(moebius_last_error(&error));
  CHECK(strstr(error.message, "is not contiguous, expected contiguous") != NULL);
  CHECK_INVALID(moebius_experts_forward(experts, &shorter, i, w, map, o, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, &bf16, i, w, map, o, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, h, w, w, map, o, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, h, i, i, map, o, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, h, i, w, &short_map, o, NULL));
  CHECK_INVALID(moebius_experts_forward(experts, h, i, w, h, o, NULL));
  m.ids[3] = E;
  CHECK_INVALID(moebius_experts_forward(experts, h, i, w, map, o, NULL));
  m.ids[3] = -2;
  CHECK_INVALID(moebius_experts_forward(experts, h, i, w, map, o, NULL));
  m.ids[3] = 0;
  m.wide_ids[3] = INT64_C(1) << 32; /* is no 0 */
  CHECK_INVALID(moebius_experts_forward(experts, h, &m.t_wide_ids, w, map, o, NULL));
  m.map[0] = L;
  CHECK_INVALID(moebius_experts_forward(experts, h, i, w, map, o, NULL));
  m.map[0] = -2;
  CHECK_INVALID(moebius_experts_forward(experts, h, i, w, map, o, NULL));
  m.map[0] = 0;

  moebius_experts_input rows = {.struct_size = sizeof(rows), .x = h, .topk_ids = i};
  CHECK_INVALID(moebius_experts_apply(experts, NULL, o, NULL));
  CHECK_INVALID(moebius_experts_apply(experts, &rows, o, NULL)); /* without weights */
  rows.topk_weights = w;
  rows.topk_ids = NULL;
  CHECK_INVALID(moebius_experts_apply(experts, &rows, o, NULL));
  rows.topk_ids = i;
  rows.expert_map = map;
  CHECK_INVALID(moebius_experts_apply(experts, &rows, NULL, NULL));
  CHECK_INVALID(moebius_experts_apply(experts, &rows, &constant, NULL));
  CHECK_INVALID(moebius_experts_apply(experts, &rows, &shorter, NULL));
  rows.x = &m.t_w1;
  CHECK_INVALID(moebius_experts_apply(experts, &rows, o, NULL));
  rows.x = h;
  rows.lora_ids = &m.t_map; /* there are no adapters */
  CHECK_INVALID(moebius_experts_apply(experts, &rows, o, NULL));
  rows.lora_ids = NULL;
  for (int j = 0; j < T * H; ++j) {
    CHECK(m.output[j] == 55);
  }
  const moebius_experts_input whole = rows;
  CHECK_STRUCT_SIZES(moebius_experts_input, whole, moebius_experts_apply(experts, given, o, NULL));
  moebius_expert_weights update = m.weights;
  update.w1 = &m.t_w2;
  CHECK_INVALID(moebius_experts_update(experts, &update, NULL));
  const moebius_expert_weights nothing = {.struct_size = sizeof(nothing)};
  CHECK_OK(moebius_experts_update(experts, &nothing, NULL)); /* all stays as it is */
  CHECK_OK(moebius_experts_forward(experts, h, i, w, map, o, NULL));
  check_output(&m);
  /* No tokens are fine. */
  const moebius_tensor h0 = matrix_of(NULL, MOEBIUS_F32, 0, H),
                       i0 = matrix_of(NULL, MOEBIUS_I32, 0, K);
  const moebius_tensor w0 = matrix_of(NULL, MOEBIUS_F32, 0, K);
  CHECK_OK(moebius_experts_forward(experts, &h0, &i0, &w0, map, &h0, NULL));

  CHECK_BAD_HANDLES(moebius_experts, other, moebius_experts_get_info(handle, &info));
  CHECK_BAD_HANDLES(moebius_experts, other, moebius_experts_forward(handle, h, i, w, map, o, NULL));
  CHECK_BAD_HANDLES(moebius_experts, other, moebius_experts_apply(handle, &whole, o, NULL));
  CHECK_BAD_HANDLES(moebius_experts, other, moebius_experts_update(handle, &good, NULL));
  CHECK_BAD_OPTIONAL(moebius_experts, other, moebius_experts_destroy(handle));
  CHECK_BAD_OPTIONAL(moebius_stream, other,
                     moebius_experts_forward(experts, h, i, w, map, o, handle));
  CHECK_OK(moebius_experts_destroy(experts));
  CHECK_OK(moebius_experts_destroy(NULL));
  CHECK_OK(moebius_workspaces_destroy(other));
  check_nested_structs();
}
