/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* What is the same for the whole process: settings, logs, interruption, memory, threads. */
#include <pthread.h>
#include <stdlib.h>

#include "tests/c_api/check.h"

static const moebius_device kCpu = {MOEBIUS_CPU, 0};

static void check_settings(void) {
  const int64_t n = moebius_num_settings();
  moebius_setting_info info = {.struct_size = sizeof(info), .name = UNTOUCHED};
  char value[64] = "kept";
  size_t bytes = 77;
  CHECK(n > 5);
  for (int64_t i = 0; i < n; ++i) {
    CHECK_OK(moebius_setting_at(i, &info));
    CHECK_EQ(strncmp(info.name, "MOEBIUS_", 8), 0);
    CHECK(info.default_value[0] != '\0' && info.meaning[0] != '\0' && info.read != NULL);
  }
  info.name = UNTOUCHED;
  CHECK_INVALID(moebius_setting_at(-1, &info));
  CHECK_INVALID(moebius_setting_at(n, &info));
  CHECK(info.name == UNTOUCHED);
  CHECK_FILLED_STRUCT(moebius_setting_info, moebius_setting_at(0, given));

  CHECK_OK(moebius_set_setting("MOEBIUS_CHUNK_TOKENS", "1234"));
  CHECK_INVALID(moebius_get_setting("MOEBIUS_CHUNK_TOKENS", value, 4, &bytes));
  CHECK_EQ(bytes, 77);
  CHECK_TEXT(value, "kept");
  CHECK_INVALID(moebius_get_setting("MOEBIUS_CHUNK_TOKENS", NULL, 4, &bytes));
  CHECK_OK(moebius_get_setting("MOEBIUS_CHUNK_TOKENS", NULL, 0, &bytes));
  CHECK_EQ(bytes, 5);
  CHECK_OK(moebius_get_setting("MOEBIUS_CHUNK_TOKENS", value, (size_t)-1, NULL));
  CHECK_TEXT(value, "1234");
  CHECK_INVALID(moebius_set_setting("MOEBIUS_CHUNK_TOKENS", "many"));
  CHECK_INVALID(moebius_set_setting("MOEBIUS_CHUNK_TOKENS", "0"));
  CHECK_OK(moebius_get_setting("MOEBIUS_CHUNK_TOKENS", value, 5, NULL));
  CHECK_TEXT(value, "1234");
  CHECK_OK(moebius_set_setting("MOEBIUS_CHUNK_TOKENS", NULL));
  CHECK_OK(moebius_get_setting("MOEBIUS_CHUNK_TOKENS", value, sizeof(value), &bytes));
  CHECK_TEXT(value, "");
  CHECK_EQ(bytes, 1);
  CHECK_INVALID(moebius_set_setting("MOEBIUS_TELEPORT", "1"));
  CHECK_INVALID(moebius_set_setting(NULL, "1"));
  CHECK_INVALID(moebius_get_setting("MOEBIUS_TELEPORT", value, sizeof(value), NULL));
  CHECK_INVALID(moebius_get_setting(NULL, value, sizeof(value), NULL));
}

typedef struct log_seen {
  int num_messages;
  int32_t level;
  char topic[32];
} log_seen;

static void see_log(void* user, int32_t level, const char* topic, const char* message) {
  log_seen* const seen = user;
  ++seen->num_messages;
  seen->level = level;
  strncpy(seen->topic, topic, sizeof(seen->topic) - 1);
  CHECK(message[0] != '\0');
}

/* Experts of two, whose choice is logged. */
static moebius_experts make_experts(moebius_stream stream) {
  static float w1[2 * 8 * 16], w2[2 * 16 * 4];
  fill(w1, sizeof(w1) / sizeof(float), 1);
  fill(w2, sizeof(w2) / sizeof(float), 2);
  const moebius_tensor t1 = cube_of(w1, MOEBIUS_F32, 2, 8, 16);
  const moebius_tensor t2 = cube_of(w2, MOEBIUS_F32, 2, 16, 4);
  const moebius_expert_weights weights = {.struct_size = sizeof(weights), .w1 = &t1, .w2 = &t2};
  const moebius_experts_options options = {
      .struct_size = sizeof(options), .topk = 1, .in_dtype = MOEBIUS_F32};
  moebius_experts experts = NULL;
  CHECK_OK(moebius_experts_create(&weights, &options, stream, &experts));
  return experts;
}

static void check_logs(void) {
  log_seen seen = {.level = -1};
  CHECK_OK(moebius_set_setting("MOEBIUS_LOG", "info,dispatch"));
  CHECK_OK(moebius_set_log_function(see_log, &seen));
  CHECK_OK(moebius_experts_destroy(make_experts(NULL)));
  CHECK(seen.num_messages > 0);
  CHECK(seen.level >= MOEBIUS_LOG_DEBUG && seen.level <= MOEBIUS_LOG_ERROR);
  CHECK_TEXT(seen.topic, "dispatch");
  CHECK_OK(moebius_set_log_function(NULL, NULL));
  CHECK_OK(moebius_set_setting("MOEBIUS_LOG", NULL));
  seen.num_messages = 0;
  CHECK_OK(moebius_experts_destroy(make_experts(NULL)));
  CHECK_EQ(seen.num_messages, 0);
}

static int32_t interrupt(void* user) {
  return ++*(int*)user >= 3 ? 1 : 0;
}

/* A barrier that the other rank never comes to ends because the function asks for it. */
static void check_interruption(void) {
  const moebius_group_options options = {.struct_size = sizeof(options), .timeout_ms = 60000};
  moebius_group groups[2];
  moebius_error_info info = {.struct_size = sizeof(info)};
  int num_calls = 0;
  CHECK_OK(moebius_make_thread_groups(2, &options, groups));
  CHECK_OK(moebius_set_interrupt_function(interrupt, &num_calls));
  CHECK_FAILS(MOEBIUS_COMM_ERROR, moebius_group_barrier(groups[1]));
  CHECK_OK(moebius_last_error(&info));
  CHECK_EQ(info.rank, 1);
  CHECK_EQ(info.peer, 1);
  CHECK_EQ(num_calls, 3);
  CHECK_OK(moebius_set_interrupt_function(NULL, NULL));
  CHECK_FAILS(MOEBIUS_COMM_ERROR, moebius_group_barrier(groups[0]));
  CHECK_OK(moebius_last_error(&info));
  CHECK_EQ(info.rank, 0);
  CHECK_EQ(info.peer, 1);
  CHECK_OK(moebius_group_destroy(groups[0]));
  CHECK_OK(moebius_group_destroy(groups[1]));
}

static void check_devices(void) {
  const moebius_device unknown = {7, 0}, negative = {MOEBIUS_CUDA, -1}, gpu = {MOEBIUS_CUDA, 0};
  const moebius_device second_cpu = {MOEBIUS_CPU, 1};
  moebius_memory_statistics statistics = {.struct_size = sizeof(statistics)};
  const int32_t num_gpus = moebius_cuda_device_count();
  CHECK(num_gpus >= 0);
  CHECK_OK(moebius_expect_usable(kCpu));
  CHECK_FAILS(num_gpus == 0 ? MOEBIUS_UNSUPPORTED : MOEBIUS_OK, moebius_expect_usable(gpu));
  CHECK_INVALID(moebius_expect_usable(unknown));
  CHECK_INVALID(moebius_expect_usable(negative));
  CHECK_INVALID(moebius_expect_usable(second_cpu));
  CHECK_INVALID(moebius_get_memory_statistics(unknown, &statistics));
  CHECK_INVALID(moebius_reset_peak_memory(negative));
  CHECK_INVALID(moebius_trim_memory(second_cpu));
  CHECK_INVALID(moebius_set_allocator(unknown, NULL));
}

typedef struct heap {
  int num_allocated, num_freed, num_destroyed;
  int is_full;
} heap;

static void* heap_allocate(
    void* user, int64_t bytes, int64_t alignment, moebius_device device, void* stream) {
  heap* const self = user;
  void* data = NULL;
  CHECK(bytes > 0 && device.type == MOEBIUS_CPU && stream == NULL);
  if (self->is_full || posix_memalign(&data, (size_t)alignment, (size_t)bytes) != 0) {
    return NULL;
  }
  ++self->num_allocated;
  return data;
}
static void heap_deallocate(
    void* user, void* data, int64_t bytes, moebius_device device, void* stream) {
  CHECK(bytes > 0 && device.type == MOEBIUS_CPU && stream == NULL);
  ++((heap*)user)->num_freed;
  free(data);
}
static void heap_destroy(void* user) {
  ++((heap*)user)->num_destroyed;
}

static void check_allocator(void) {
  heap mine = {0};
  moebius_allocator allocator = {.struct_size = sizeof(allocator),
                                 .user = &mine,
                                 .allocate = heap_allocate,
                                 .deallocate = heap_deallocate,
                                 .destroy = heap_destroy};
  const int64_t shape[2] = {3, 100};
  moebius_memory_statistics before = {.struct_size = sizeof(before)};
  moebius_memory_statistics during = before;
  moebius_array array = NULL, none = UNTOUCHED;
  CHECK_OK(moebius_trim_memory(kCpu));
  CHECK_OK(moebius_get_memory_statistics(kCpu, &before));
  CHECK_OK(moebius_set_allocator(kCpu, &allocator));
  CHECK_OK(moebius_array_empty(MOEBIUS_F32, kCpu, 2, shape, &array));
  CHECK_EQ(mine.num_allocated, 1);
  CHECK_OK(moebius_get_memory_statistics(kCpu, &during));
  CHECK(during.bytes - before.bytes >= 1200);
  CHECK_EQ(during.num_blocks, before.num_blocks + 1);
  CHECK_EQ(during.num_allocations, before.num_allocations + 1);
  CHECK(during.peak_bytes >= during.bytes);
  mine.is_full = 1;
  CHECK_FAILS(MOEBIUS_OUT_OF_MEMORY, moebius_array_empty(MOEBIUS_F32, kCpu, 2, shape, &none));
  CHECK(none == UNTOUCHED);
  CHECK_OK(moebius_set_allocator(kCpu, NULL));
  CHECK_EQ(mine.num_destroyed, 0); /* its memory is not back yet */
  CHECK_OK(moebius_array_destroy(array));
  CHECK_EQ(mine.num_freed, 1);
  CHECK_EQ(mine.num_destroyed, 1);
  CHECK_OK(moebius_reset_peak_memory(kCpu));
  CHECK_OK(moebius_get_memory_statistics(kCpu, &during));
  CHECK_EQ(during.bytes, before.bytes);
  CHECK_EQ(during.peak_bytes, during.bytes);

  CHECK_FILLED_STRUCT(moebius_memory_statistics, moebius_get_memory_statistics(kCpu, given));
  CHECK_STRUCT_SIZES(moebius_allocator, allocator, moebius_set_allocator(kCpu, given));
  CHECK_OK(moebius_set_allocator(kCpu, NULL));
  CHECK_EQ(mine.num_destroyed, 2);
  allocator.deallocate = NULL;
  CHECK_INVALID(moebius_set_allocator(kCpu, &allocator));
  allocator.allocate = NULL;
  CHECK_INVALID(moebius_set_allocator(kCpu, &allocator));
}

typedef struct executor {
  int num_loops;
  int32_t answer;
} executor;

static int32_t execute(void* user,
                       int32_t num_threads,
                       void (*job)(void* context, int32_t thread_idx),
                       void* context) {
  executor* const self = user;
  ++self->num_loops;
  if (self->answer == 0) {
    job(context, num_threads - 1);
  }
  return self->answer;
}

static void check_executor(void) {
  enum { T = 64 };
  static float hidden[T * 16], mine[T * 16], theirs[T * 16], weights[T];
  static int32_t ids[T];
  executor serial = {0, 0}, broken = {0, 5};
  moebius_error_info info = {.struct_size = sizeof(info)};
  moebius_stream stream = NULL;
  CHECK_OK(moebius_stream_cpu(4, &stream));
  const moebius_experts experts = make_experts(stream);
  fill(hidden, T * 16, 3);
  fill(weights, T, 4);
  for (uint32_t t = 0; t < T; ++t) {
    ids[t] = pick(t, 2);
  }
  const moebius_tensor h = matrix_of(hidden, MOEBIUS_F32, T, 16);
  const moebius_tensor i = matrix_of(ids, MOEBIUS_I32, T, 1);
  const moebius_tensor w = matrix_of(weights, MOEBIUS_F32, T, 1);
  const moebius_tensor a = matrix_of(mine, MOEBIUS_F32, T, 16);
  const moebius_tensor b = matrix_of(theirs, MOEBIUS_F32, T, 16);
  CHECK_OK(moebius_experts_forward(experts, &h, &i, &w, NULL, &a, stream));
  CHECK_OK(moebius_set_executor(execute, &serial));
  CHECK_OK(moebius_experts_forward(experts, &h, &i, &w, NULL, &b, stream));
  CHECK(serial.num_loops > 0);
  CHECK_EQ(memcmp(mine, theirs, sizeof(mine)), 0);
  CHECK_OK(moebius_set_executor(execute, &broken));
  CHECK_FAILS(MOEBIUS_ERROR, moebius_experts_forward(experts, &h, &i, &w, NULL, &b, stream));
  CHECK_OK(moebius_last_error(&info));
  CHECK(strstr(info.message, "5") != NULL);
  CHECK_OK(moebius_set_executor(NULL, NULL));
  CHECK_OK(moebius_experts_forward(experts, &h, &i, &w, NULL, &b, stream));
  CHECK_OK(moebius_experts_destroy(experts));
  CHECK_OK(moebius_stream_destroy(stream));
}

void test_process(void) {
  check_settings();
  check_logs();
  check_interruption();
  check_devices();
  check_allocator();
  check_executor();
}
