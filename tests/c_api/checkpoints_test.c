/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints, and layers loaded from them, alone and over ranks. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/c_api/check.h"

enum { T = 11, R = 4 };

/* A layer of the folder, and what it makes of T tokens. */
typedef struct run {
  moebius_checkpoint checkpoint;
  int64_t hidden_size;
  float* hidden;
  float* expected;
  const char* backend;
} run;

static moebius_model_info info_of(moebius_checkpoint checkpoint) {
  moebius_model_info info = {.struct_size = sizeof(info)};
  CHECK_OK(moebius_checkpoint_get_info(checkpoint, &info));
  return info;
}

static void forward(moebius_layer layer, const run* r, float* output) {
  const moebius_tensor h = matrix_of(r->hidden, MOEBIUS_F32, T, r->hidden_size);
  const moebius_tensor o = matrix_of(output, MOEBIUS_F32, T, r->hidden_size);
  const moebius_layer_input input = {.struct_size = sizeof(input), .hidden = &h};
  CHECK_OK(moebius_layer_forward(layer, &input, &o, NULL));
}

static void check_close(const run* r, const float* output, double tolerance) {
  double largest = 0;
  for (int64_t i = 0; i < T * r->hidden_size; ++i) {
    const double size = r->expected[i] < 0 ? -(double)r->expected[i] : (double)r->expected[i];
    largest = size > largest ? size : largest;
  }
  CHECK(largest > 0);
  for (int64_t i = 0; i < T * r->hidden_size; ++i) {
    CHECK_NEAR(output[i], r->expected[i], tolerance * largest);
  }
}

static void load_in_group(moebius_group* group, int rank, void* user) {
  const run* const r = user;
  const moebius_layer_options options = {.struct_size = sizeof(options), .backend = r->backend};
  moebius_layer layer = NULL;
  moebius_layer_info info = {.struct_size = sizeof(info)};
  float* const output = malloc(sizeof(float) * (size_t)(T * r->hidden_size));
  CHECK_OK(moebius_layer_load(r->checkpoint, -1, NULL, &options, *group, NULL, &layer));
  CHECK_OK(moebius_layer_get_info(layer, &info));
  CHECK_EQ(info.num_local_experts, info.num_experts / R);
  CHECK_TEXT(info.backend, r->backend == NULL ? "high_throughput" : r->backend);
  forward(layer, r, output);
  check_close(r, output, 2e-2);
  CHECK_OK(moebius_layer_destroy(layer));
  free(output);
  (void)rank;
}

static void check_misuse(moebius_checkpoint good, const char* path) {
  moebius_checkpoint untouched = UNTOUCHED;
  moebius_layer layer = UNTOUCHED;
  moebius_workspaces other = NULL;
  moebius_model_info info = {.struct_size = sizeof(info)};
  moebius_load_options load = {.struct_size = sizeof(load)};
  char sub[300];
  int64_t bytes = 77;
  CHECK_OK(moebius_workspaces_create(&other));
  CHECK_INVALID(moebius_checkpoint_open(NULL, &untouched));
  CHECK_INVALID(moebius_checkpoint_open(path, NULL));
  CHECK_INVALID(moebius_checkpoint_open("/nowhere/at/all", &untouched));
  CHECK_INVALID(moebius_checkpoint_open("", &untouched));
  CHECK(untouched == UNTOUCHED);
  CHECK_FILLED_STRUCT(moebius_model_info, moebius_checkpoint_get_info(good, given));
  CHECK_BAD_HANDLES(moebius_checkpoint, other, moebius_checkpoint_get_info(handle, &info));
  CHECK_BAD_HANDLES(moebius_checkpoint, other,
                    moebius_layer_load(handle, -1, NULL, NULL, NULL, NULL, &layer));
  CHECK_BAD_OPTIONAL(moebius_checkpoint, other, moebius_checkpoint_destroy(handle));
  CHECK_BAD_OPTIONAL(moebius_group, other,
                     moebius_layer_load(good, -1, NULL, NULL, handle, NULL, &layer));
  CHECK_BAD_OPTIONAL(moebius_stream, other,
                     moebius_layer_load(good, -1, NULL, NULL, NULL, handle, &layer));
  CHECK_INVALID(moebius_layer_load(good, -2, NULL, NULL, NULL, NULL, &layer));
  CHECK_INVALID(moebius_layer_load(good, 1000000, NULL, NULL, NULL, NULL, &layer));
  CHECK_INVALID(moebius_layer_load(good, -1, NULL, NULL, NULL, NULL, NULL));
  load.quant = "teleport";
  CHECK_INVALID(moebius_layer_load(good, -1, &load, NULL, NULL, NULL, &layer));
  load.quant = NULL;
  load.allow_nonfinite = 2;
  CHECK_INVALID(moebius_layer_load(good, -1, &load, NULL, NULL, NULL, &layer));
  load.allow_nonfinite = 0;
  int32_t rank_of[2] = {0, 1};
  const moebius_placement placement = {
      .struct_size = sizeof(placement), .rank_of = rank_of, .num_experts = 2};
  load.placement = &placement;
  CHECK_INVALID(moebius_layer_load(good, -1, &load, NULL, NULL, NULL, &layer));
  load.placement = NULL;
  CHECK(layer == UNTOUCHED);
  layer = NULL;
  CHECK_STRUCT_SIZES(moebius_load_options, load,
                     (moebius_layer_destroy(layer), layer = NULL,
                      moebius_layer_load(good, -1, given, NULL, NULL, NULL, &layer)));
  CHECK_OK(moebius_layer_destroy(layer));

  snprintf(sub, sizeof(sub), "%s/bad", path);
  CHECK_INVALID(moebius_make_model(NULL, 1, NULL, 0, sub, &bytes));
  CHECK_INVALID(moebius_make_model("teleport", 1, NULL, 0, sub, &bytes));
  CHECK_INVALID(moebius_make_model("tiny", -1, NULL, 0, sub, &bytes));
  CHECK_INVALID(moebius_make_model("tiny", 1, "teleport", 0, sub, &bytes));
  CHECK_INVALID(moebius_make_model("tiny", 1, NULL, 0, NULL, &bytes));
  CHECK(moebius_make_model("tiny", 1, NULL, 0, "/proc/nowhere", &bytes) != MOEBIUS_OK);
  CHECK_EQ(bytes, 77);
  CHECK_OK(moebius_workspaces_destroy(other));
}

void test_checkpoints(void) {
  char path[256], model[300];
  run r = {.hidden_size = 0};
  int64_t bytes = 0;
  make_folder(path, sizeof(path));
  snprintf(model, sizeof(model), "%s/model", path);
  CHECK_OK(moebius_make_model("tiny", 2, NULL, 7, model, &bytes));
  CHECK(bytes > 0);
  CHECK_OK(moebius_checkpoint_open(model, &r.checkpoint));
  const moebius_model_info info = info_of(r.checkpoint);
  CHECK(info.family[0] != '\0');
  CHECK_TEXT(info.quant_method, "none");
  CHECK_EQ(info.num_layers, 2);
  CHECK(info.num_moe_layers >= 1 && info.moe_layers[0] >= 0);
  CHECK(info.hidden > 0 && info.intermediate > 0 && info.topk > 0);
  CHECK(info.dtype == MOEBIUS_BF16 || info.dtype == MOEBIUS_F32 || info.dtype == MOEBIUS_F16);

  /* What a layer computes is near what its oracle in double does. */
  const moebius_layer_options oracle = {.struct_size = sizeof(oracle), .computes_in_f64 = 1};
  moebius_layer layer = NULL;
  r.hidden_size = info.hidden;
  const size_t n = (size_t)(T * info.hidden);
  r.hidden = malloc(n * sizeof(float));
  r.expected = malloc(n * sizeof(float));
  float* const output = malloc(n * sizeof(float));
  fill(r.hidden, n, 1);
  for (size_t i = 0; i < n; ++i) { /* such that bf16 holds it */
    r.hidden[i] = (float)((int)(r.hidden[i] * 64)) / 64;
  }
  CHECK_OK(moebius_layer_load(r.checkpoint, info.moe_layers[0], NULL, &oracle, NULL, NULL, &layer));
  forward(layer, &r, r.expected);
  CHECK_OK(moebius_layer_destroy(layer));
  CHECK_OK(moebius_layer_load(r.checkpoint, -1, NULL, NULL, NULL, NULL, &layer));
  forward(layer, &r, output);
  check_close(&r, output, 2e-2);
  moebius_layer_info of = {.struct_size = sizeof(of)};
  CHECK_OK(moebius_layer_get_info(layer, &of));
  CHECK_EQ(of.num_experts, info.num_experts);
  CHECK_EQ(of.num_local_experts, info.num_experts);
  CHECK_EQ(of.topk, info.topk);
  CHECK_EQ(of.hidden, info.hidden);
  CHECK_EQ(of.intermediate, info.intermediate);
  CHECK_EQ(of.has_router, 1);
  CHECK_EQ(of.retains_weights, 0);
  CHECK_EQ(of.can_be_captured, of.why_not_captured[0] == '\0');
  CHECK(of.experts[0] != '\0');
  CHECK_TEXT(of.backend, "no_ep");

  /* Each token selects topk experts, which all are here. */
  int64_t total = 0, local = 0;
  int64_t* const load = malloc(sizeof(int64_t) * (size_t)info.num_experts);
  CHECK_OK(moebius_layer_expert_load(layer, 0, load, info.num_experts));
  for (int64_t e = 0; e < info.num_experts; ++e) {
    total += load[e];
  }
  CHECK_OK(moebius_layer_expert_load(layer, 1, load, info.num_experts));
  for (int64_t e = 0; e < info.num_experts; ++e) {
    local += load[e];
  }
  CHECK_EQ(total, T * info.topk);
  CHECK_EQ(local, T * info.topk);
  CHECK_INVALID(moebius_layer_expert_load(layer, 0, load, info.num_experts - 1));
  CHECK_INVALID(moebius_layer_expert_load(layer, 2, load, info.num_experts));
  CHECK_INVALID(moebius_layer_expert_load(layer, 0, NULL, info.num_experts));
  CHECK_OK(moebius_layer_destroy(layer));
  free(load);

  /* Quantized at load: near it still. */
  const moebius_load_options int8 = {.struct_size = sizeof(int8), .quant = "int8_w8a16"};
  const moebius_status status =
      moebius_layer_load(r.checkpoint, -1, &int8, NULL, NULL, NULL, &layer);
  CHECK_OK(status);
  forward(layer, &r, output);
  check_close(&r, output, 0.1);
  CHECK_OK(moebius_layer_destroy(layer));

  const char* const backends[] = {NULL, "allgather_reducescatter", "high_throughput"};
  for (int i = 0; i < 3; ++i) {
    r.backend = backends[i];
    run_ranks(R, NULL, load_in_group, &r);
  }
  check_misuse(r.checkpoint, path);
  CHECK_OK(moebius_checkpoint_destroy(r.checkpoint));
  CHECK_INVALID(moebius_checkpoint_destroy(r.checkpoint));
  CHECK_OK(moebius_checkpoint_destroy(NULL));
  remove_folder(path);
  free(r.hidden);
  free(r.expected);
  free(output);
}
