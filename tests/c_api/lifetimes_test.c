/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Objects are destroyed in any order, and a thousand of them leave nothing behind. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/c_api/small_layer.h"

enum { R = 2, NUM_ORDERS = 6, NUM_CYCLES = 1000 };

static int32_t alone(void* user, const void* in, int64_t bytes, void* out) {
  (void)user;
  memcpy(out, in, (size_t)bytes);
  return 0;
}

/* Everything that comes of a group, destroyed in one of several orders. */
static void one_cycle(moebius_group* group, int rank, int order) {
  small_layer* const s = layer_of(rank);
  small_call* const c = call_of(rank);
  moebius_group_info info = {.struct_size = sizeof(info)};
  CHECK_OK(moebius_group_get_info(*group, &info));
  make_small_layer(s, rank, info.size);
  make_small_call(c, (uint32_t)rank);
  int32_t ids[SL_T];
  for (int t = 0; t < SL_T; ++t) {
    ids[t] = (t + rank) % SL_E;
  }
  const moebius_tensor ti = matrix_of(ids, MOEBIUS_I32, SL_T, 1);
  const moebius_tensor* const payloads[1] = {&c->t_hidden};
  moebius_transports transports = NULL;
  moebius_high_throughput transport = NULL;
  moebius_low_latency low_latency = NULL;
  moebius_layer layer = NULL;
  moebius_result result = NULL, low_result = NULL, combined = NULL;
  moebius_array array = NULL;
  moebius_workspaces workspaces = NULL;
  moebius_tensor rows, sums;
  CHECK_OK(moebius_workspaces_create(&workspaces));
  CHECK_OK(moebius_transports_create(*group, &transports));
  const moebius_layer_options options = {
      .struct_size = sizeof(options), .transports = transports, .workspaces = workspaces};
  const moebius_high_throughput_options high = {
      .struct_size = sizeof(high), .num_experts = SL_E, .transports = transports};
  const moebius_low_latency_options low = {.struct_size = sizeof(low),
                                           .num_experts = SL_E,
                                           .max_tokens = SL_T,
                                           .hidden = SL_H,
                                           .topk = 1,
                                           .in_dtype = MOEBIUS_F32};
  const moebius_dispatch_input input = {
      .struct_size = sizeof(input), .payloads = payloads, .num_payloads = 1, .topk_ids = &ti};
  const moebius_low_latency_dispatch_input low_input = {
      .struct_size = sizeof(low_input), .x = &c->t_hidden, .topk_ids = &ti};
  CHECK_OK(moebius_layer_create(&s->weights, &options, *group, NULL, &layer));
  CHECK_OK(moebius_high_throughput_create(*group, &high, &transport));
  CHECK_OK(moebius_low_latency_create(*group, &low, &low_latency));
  CHECK_OK(moebius_layer_forward(layer, &c->input, &c->t_output, NULL));
  check_small_output(s, c, 0);
  CHECK_OK(moebius_high_throughput_dispatch(transport, &input, NULL, &result));
  CHECK_OK(moebius_low_latency_dispatch(low_latency, &low_input, NULL, &low_result));
  array = array_of(result, "payload", 0, &rows);
  const moebius_combine_input combine = {.struct_size = sizeof(combine), .x = &rows};
  CHECK_OK(moebius_high_throughput_combine(transport, &combine, result, NULL, &combined));
  const moebius_array kept = array_of(combined, "x", 0, &sums);
  const moebius_array low_kept = array_of(low_result, "x", 0, &rows);

#define FINISH(i)                                           \
  switch (i) {                                              \
    case 0:                                                 \
      CHECK_OK(moebius_group_destroy(*group));              \
      break;                                                \
    case 1:                                                 \
      CHECK_OK(moebius_transports_destroy(transports));     \
      break;                                                \
    case 2:                                                 \
      CHECK_OK(moebius_high_throughput_destroy(transport)); \
      break;                                                \
    case 3:                                                 \
      CHECK_OK(moebius_low_latency_destroy(low_latency));   \
      break;                                                \
    case 4:                                                 \
      CHECK_OK(moebius_layer_destroy(layer));               \
      break;                                                \
    case 5:                                                 \
      CHECK_OK(moebius_result_destroy(result));             \
      break;                                                \
    case 6:                                                 \
      CHECK_OK(moebius_result_destroy(low_result));         \
      break;                                                \
    case 7:                                                 \
      CHECK_OK(moebius_array_destroy(array));               \
      break;                                                \
    case 8:                                                 \
      CHECK_OK(moebius_workspaces_destroy(workspaces));     \
      break;                                                \
    default:                                                \
      CHECK_OK(moebius_result_destroy(combined));           \
      break;                                                \
  }
  /* Steps that have no common factor with 10 visit each once: forwards, backwards, in leaps. */
  static const int kFirst[NUM_ORDERS] = {0, 9, 4, 6, 2, 5};
  static const int kStep[NUM_ORDERS] = {1, 9, 3, 7, 9, 3};
  for (int i = 0; i < 10; ++i) {
    FINISH((kFirst[order] + i * kStep[order]) % 10);
  }
#undef FINISH
  *group = NULL;
  /* Arrays may be the last to go. */
  for (int t = 0; t < SL_T; ++t) {
    CHECK(((float*)sums.data)[t * SL_H] == c->hidden[t * SL_H]);
  }
  volatile float touched = ((float*)rows.data)[0];
  (void)touched;
  CHECK_OK(moebius_array_destroy(kept));
  CHECK_OK(moebius_array_destroy(low_kept));
}

static void cycle(moebius_group* group, int rank, void* user) {
  one_cycle(group, rank, *(int*)user);
}

static int count_entries(const char* path) {
  DIR* const folder = opendir(path);
  int count = 0;
  if (folder == NULL) {
    return 0;
  }
  while (readdir(folder) != NULL) {
    ++count;
  }
  closedir(folder);
  return count;
}

static int64_t resident_bytes(void) {
  FILE* const file = fopen("/proc/self/statm", "r");
  long total = 0, resident = 0;
  CHECK(file != NULL);
  CHECK_EQ(fscanf(file, "%ld %ld", &total, &resident), 2);
  fclose(file);
  return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

typedef struct left {
  int descriptors, shared_files, threads;
  int64_t bytes, blocks, resident;
} left;

static left look(void) {
  const moebius_device cpu = {MOEBIUS_CPU, 0};
  moebius_memory_statistics statistics = {.struct_size = sizeof(statistics)};
  CHECK_OK(moebius_trim_memory(cpu));
  CHECK_OK(moebius_get_memory_statistics(cpu, &statistics));
  return (left){.descriptors = count_entries("/proc/self/fd"),
                .shared_files = count_entries("/dev/shm"),
                .threads = count_entries("/proc/self/task"),
                .bytes = statistics.bytes,
                .blocks = statistics.num_blocks,
                .resident = resident_bytes()};
}

static void check_cycles(int num_cycles, int num_ranks) {
  for (int i = 0; i < num_cycles; ++i) {
    int order = i % NUM_ORDERS;
    if (num_ranks > 1) {
      run_ranks(num_ranks, NULL, cycle, &order);
    } else { /* a process alone, with the shared memory of its kind */
      moebius_group group = NULL;
      CHECK_OK(moebius_make_process_group(0, 1, alone, NULL, NULL, &group));
      one_cycle(&group, 0, order);
    }
  }
}

void test_lifetimes(void) {
  const char* const given = getenv("MOEBIUS_TEST_CYCLES"); /* sanitizers are slow */
  const int num_cycles = given == NULL ? NUM_CYCLES : atoi(given);
  check_cycles(50, R); /* caches are full after these */
  check_cycles(50, 1);
  const left before = look();
  check_cycles(num_cycles / 5, R); /* whose threads are new each time */
  check_cycles(num_cycles, 1);
  const left after = look();
  CHECK_EQ(after.descriptors, before.descriptors);
  CHECK_EQ(after.threads, before.threads);
  CHECK_EQ(after.bytes, before.bytes);
  CHECK_EQ(after.blocks, before.blocks);
  CHECK(after.shared_files <= before.shared_files + 8); /* other processes may have some */
  CHECK(given != NULL || after.resident < before.resident + (INT64_C(16) << 20));
}
