/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/c_api/check.h"

#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Other threads may wait for this one, so nothing is unwound. */
static void fail(check_place where) {
  fprintf(stderr, "  in %s (%s:%d)\n", where.text, where.file, where.line);
  fflush(NULL);
  _exit(1);
}

void check_equal(int64_t got, int64_t expected, check_place where) {
  if (got != expected) {
    fprintf(stderr, "value is %lld, expected %lld\n", (long long)got, (long long)expected);
    fail(where);
  }
}

void check_near(double got, double expected, double tolerance, check_place where) {
  if (!(fabs(got - expected) <= tolerance)) {
    fprintf(stderr, "value is %.9g, expected %.9g with a tolerance of %g\n", got, expected,
            tolerance);
    fail(where);
  }
}

void check_text(const char* got, const char* expected, check_place where) {
  if (got == NULL || strcmp(got, expected) != 0) {
    fprintf(stderr, "text is \"%s\", expected \"%s\"\n", got == NULL ? "(null)" : got, expected);
    fail(where);
  }
}

void check_status(moebius_status got, moebius_status expected, check_place where) {
  moebius_error_info info = {.struct_size = sizeof(info)};
  if (got == MOEBIUS_OK && expected == MOEBIUS_OK) {
    return;
  }
  moebius_last_error(&info);
  if (got != expected) {
    fprintf(stderr, "status is %s, expected %s: %s\n", moebius_status_name(got),
            moebius_status_name(expected), got == MOEBIUS_OK ? "" : info.message);
    fail(where);
  }
  if (info.status != got || info.message[0] == '\0' || strchr(info.message, '\n') != NULL) {
    fprintf(stderr, "the last error is %s with the message \"%s\", expected %s and one line\n",
            moebius_status_name(info.status), info.message, moebius_status_name(got));
    fail(where);
  }
}

bad_handles make_bad_handles(const void* other) {
  moebius_workspaces destroyed = NULL;
  CHECK_OK(moebius_workspaces_create(&destroyed));
  CHECK_OK(moebius_workspaces_destroy(destroyed));
  return (bad_handles){{0, 1, 2, 0xdeadbeef, UINTPTR_MAX, (uintptr_t)&destroyed,
                        (uintptr_t)destroyed, (uintptr_t)other}};
}

static moebius_tensor view_of(void* data, int32_t dtype, int32_t num_dims) {
  return (moebius_tensor){
      .struct_size = sizeof(moebius_tensor), .data = data, .dtype = dtype, .num_dims = num_dims};
}

moebius_tensor vector_of(void* data, int32_t dtype, int64_t n) {
  moebius_tensor tensor = view_of(data, dtype, 1);
  tensor.shape[0] = n;
  return tensor;
}

moebius_tensor matrix_of(void* data, int32_t dtype, int64_t rows, int64_t cols) {
  moebius_tensor tensor = view_of(data, dtype, 2);
  tensor.shape[0] = rows;
  tensor.shape[1] = cols;
  return tensor;
}

moebius_tensor cube_of(void* data, int32_t dtype, int64_t a, int64_t b, int64_t c) {
  moebius_tensor tensor = view_of(data, dtype, 3);
  tensor.shape[0] = a;
  tensor.shape[1] = b;
  tensor.shape[2] = c;
  return tensor;
}

moebius_tensor read_only(moebius_tensor tensor) {
  tensor.flags = MOEBIUS_READ_ONLY;
  return tensor;
}

static uint32_t next(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

void fill(float* out, size_t n, uint32_t seed) {
  uint32_t state = seed * 2654435761u + 1u;
  for (size_t i = 0; i < n; ++i) {
    out[i] = (float)next(&state) / 8388608.0f - 1.0f;
  }
}

int32_t pick(uint32_t seed, int32_t n) {
  uint32_t state = seed * 2654435761u + 1u;
  next(&state);
  return (int32_t)(next(&state) % (uint32_t)n);
}

typedef struct rank_thread {
  moebius_group group;
  int rank;
  rank_body body;
  void* user;
  pthread_t thread;
} rank_thread;

static void* run_rank(void* argument) {
  rank_thread* const self = argument;
  self->body(&self->group, self->rank, self->user);
  CHECK_OK(moebius_group_destroy(self->group));
  return NULL;
}

void run_ranks(int num_ranks, const moebius_group_options* options, rank_body body, void* user) {
  moebius_group groups[16];
  rank_thread ranks[16];
  CHECK(num_ranks <= 16);
  CHECK_OK(moebius_make_thread_groups(num_ranks, options, groups));
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks[rank] = (rank_thread){.group = groups[rank], .rank = rank, .body = body, .user = user};
    CHECK_EQ(pthread_create(&ranks[rank].thread, NULL, run_rank, &ranks[rank]), 0);
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    CHECK_EQ(pthread_join(ranks[rank].thread, NULL), 0);
  }
}

moebius_array array_of(moebius_result result, const char* name, int index, moebius_tensor* view) {
  moebius_array array = NULL;
  CHECK_OK(moebius_result_array(result, name, index, &array));
  CHECK(array != NULL);
  *view = (moebius_tensor){.struct_size = sizeof(*view)};
  CHECK_OK(moebius_array_view(array, view));
  return array;
}

void add_expert(const experts_values* all, int e, const float* x, double weight, double* out) {
  const int hidden = all->hidden, intermediate = all->intermediate;
  const float* const w1 = all->w1 + e * 2 * intermediate * hidden;
  const float* const w2 = all->w2 + e * hidden * intermediate;
  for (int i = 0; i < intermediate; ++i) {
    double gate = 0, up = 0;
    for (int h = 0; h < hidden; ++h) {
      gate += (double)w1[i * hidden + h] * (double)x[h];
      up += (double)w1[(intermediate + i) * hidden + h] * (double)x[h];
    }
    const double activated = gate / (1 + exp(-gate)) * up;
    for (int h = 0; h < hidden; ++h) {
      out[h] += weight * activated * (double)w2[h * intermediate + i];
    }
  }
}

void make_folder(char* path, size_t room) {
  const char* const parent = getenv("TMPDIR");
  snprintf(path, room, "%s/moebius_c_api_XXXXXX", parent == NULL ? "/tmp" : parent);
  CHECK(mkdtemp(path) != NULL);
}

static int remove_entry(const char* path, const struct stat* st, int type, struct FTW* at) {
  (void)st;
  (void)type;
  (void)at;
  return remove(path);
}

void remove_folder(const char* path) {
  CHECK_EQ(nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}
