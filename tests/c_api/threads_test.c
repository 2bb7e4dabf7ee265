/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* One object and two threads, or a callback that comes back: refused, and the call under way is not
 * disturbed.  What is destroyed meanwhile ends with that call. */
#include <pthread.h>
#include <sched.h>

#include "tests/c_api/small_layer.h"

/* A layer whose routing function waits inside a call until it is let go. */
typedef struct scene {
  small_layer tensors;
  small_call call;
  moebius_layer layer;
  moebius_group group;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int is_inside, may_leave;
  int destroys; /* the function destroys the layer and the group */
} scene;

static void set(scene* s, int* flag) {
  pthread_mutex_lock(&s->mutex);
  *flag = 1;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
}
static void wait_for(scene* s, const int* flag) {
  pthread_mutex_lock(&s->mutex);
  while (!*flag) {
    pthread_cond_wait(&s->changed, &s->mutex);
  }
  pthread_mutex_unlock(&s->mutex);
}

static int32_t route(void* user,
                     const moebius_tensor* hidden,
                     const moebius_tensor* ids,
                     const moebius_tensor* weights,
                     void* stream) {
  scene* const s = user;
  moebius_layer_info info = {.struct_size = sizeof(info)};
  moebius_call call = UNTOUCHED;
  (void)hidden;
  (void)stream;
  for (int i = 0; i < SL_T * SL_K; ++i) {
    ((int32_t*)ids->data)[i] = i % SL_K;
    ((float*)weights->data)[i] = 0.5f;
  }
  CHECK_INVALID(moebius_layer_forward(s->layer, &s->call.input, &s->call.t_output, NULL));
  CHECK_INVALID(moebius_layer_start(s->layer, &s->call.input, &s->call.t_output, NULL, &call));
  CHECK_INVALID(moebius_layer_get_info(s->layer, &info));
  CHECK_INVALID(moebius_group_barrier(s->group));
  CHECK(call == UNTOUCHED);
  if (s->destroys) {
    CHECK_OK(moebius_layer_destroy(s->layer));
    CHECK_OK(moebius_group_destroy(s->group));
    CHECK_INVALID(moebius_layer_get_info(s->layer, &info));
  }
  set(s, &s->is_inside);
  wait_for(s, &s->may_leave);
  return 0;
}

static void make_scene(scene* s, int destroys) {
  memset(s, 0, sizeof(*s));
  make_small_layer(&s->tensors, 0, 1);
  make_small_call(&s->call, 1);
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->destroys = destroys;
  s->tensors.weights.router = NULL;
  s->tensors.weights.shared = NULL;
  const moebius_layer_options options = {
      .struct_size = sizeof(options), .routing = route, .routing_user = s};
  CHECK_OK(moebius_make_thread_groups(1, NULL, &s->group));
  CHECK_OK(moebius_layer_create(&s->tensors.weights, &options, s->group, NULL, &s->layer));
}

static void* forward(void* user) {
  scene* const s = user;
  CHECK_OK(moebius_layer_forward(s->layer, &s->call.input, &s->call.t_output, NULL));
  return NULL;
}

static void check_result(const scene* s) {
  const experts_values experts = {s->tensors.w1, s->tensors.w2, SL_H, SL_I};
  for (int t = 0; t < SL_T; ++t) {
    double expected[SL_H] = {0};
    for (int e = 0; e < SL_K; ++e) {
      add_expert(&experts, e, s->call.hidden + t * SL_H, 0.5, expected);
    }
    for (int h = 0; h < SL_H; ++h) {
      CHECK_NEAR(s->call.output[t * SL_H + h], expected[h], 1e-3);
    }
  }
}

static void check_two_threads(void) {
  static scene s;
  static small_call mine;
  pthread_t thread;
  moebius_error_info error = {.struct_size = sizeof(error)};
  make_scene(&s, 0);
  make_small_call(&mine, 2);
  CHECK_EQ(pthread_create(&thread, NULL, forward, &s), 0);
  wait_for(&s, &s.is_inside);
  CHECK_INVALID(moebius_layer_forward(s.layer, &mine.input, &mine.t_output, NULL));
  CHECK_OK(moebius_last_error(&error));
  CHECK(strstr(error.message, "in use") != NULL);
  CHECK_INVALID(moebius_group_barrier(s.group));
  CHECK(mine.output[0] == 0);
  set(&s, &s.may_leave);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  check_result(&s);
  CHECK_OK(moebius_group_barrier(s.group));
  CHECK_OK(moebius_layer_forward(s.layer, &mine.input, &mine.t_output, NULL));
  CHECK_OK(moebius_layer_destroy(s.layer));
  CHECK_OK(moebius_group_destroy(s.group));
}

/* The layer and its group are destroyed by another thread, or by the callback itself. */
static void check_destruction(int by_callback) {
  static scene s;
  pthread_t thread;
  moebius_layer_info info = {.struct_size = sizeof(info)};
  make_scene(&s, by_callback);
  CHECK_EQ(pthread_create(&thread, NULL, forward, &s), 0);
  wait_for(&s, &s.is_inside);
  if (!by_callback) {
    CHECK_OK(moebius_group_destroy(s.group));
    CHECK_OK(moebius_layer_destroy(s.layer));
  }
  CHECK_INVALID(moebius_layer_destroy(s.layer));
  CHECK_INVALID(moebius_layer_get_info(s.layer, &info));
  set(&s, &s.may_leave);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  check_result(&s);
}

/* Many threads at one router: each call succeeds or is refused, and none crashes. */
typedef struct crowd {
  moebius_router router;
  moebius_array array;
  pthread_mutex_t mutex;
  int num_done;
} crowd;

static void* jostle(void* user) {
  crowd* const c = user;
  float logits[SL_T * SL_E], weights[SL_T * SL_K];
  int32_t ids[SL_T * SL_K];
  moebius_tensor view = {.struct_size = sizeof(view)};
  fill(logits, SL_T * SL_E, 5);
  const moebius_tensor tl = matrix_of(logits, MOEBIUS_F32, SL_T, SL_E);
  const moebius_tensor ti = matrix_of(ids, MOEBIUS_I32, SL_T, SL_K);
  const moebius_tensor tw = matrix_of(weights, MOEBIUS_F32, SL_T, SL_K);
  int num_done = 0;
  while (num_done < 20) {
    const moebius_status status = moebius_router_select(c->router, &tl, &ti, &tw, NULL);
    CHECK(status == MOEBIUS_OK || status == MOEBIUS_INVALID_ARGUMENT);
    num_done += status == MOEBIUS_OK;
    CHECK_OK(moebius_array_view(c->array, &view)); /* only looks */
    sched_yield();
  }
  pthread_mutex_lock(&c->mutex);
  c->num_done += num_done;
  pthread_mutex_unlock(&c->mutex);
  return NULL;
}

static void check_crowd(void) {
  enum { N = 4 };
  static float gate[SL_E * SL_H];
  const moebius_device cpu = {MOEBIUS_CPU, 0};
  const moebius_router_config config = {
      .struct_size = sizeof(config), .num_experts = SL_E, .topk = SL_K};
  const int64_t shape[1] = {4};
  crowd c = {.num_done = 0};
  pthread_t threads[N];
  fill(gate, SL_E * SL_H, 1);
  pthread_mutex_init(&c.mutex, NULL);
  CHECK_OK(moebius_array_empty(MOEBIUS_F32, cpu, 1, shape, &c.array));
  CHECK_OK(moebius_router_create(&config, NULL, cpu, &c.router));
  for (int i = 0; i < N; ++i) {
    CHECK_EQ(pthread_create(&threads[i], NULL, jostle, &c), 0);
  }
  for (int i = 0; i < N; ++i) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK_EQ(c.num_done, N * 20);
  CHECK_OK(moebius_router_destroy(c.router));
  CHECK_OK(moebius_array_destroy(c.array));
}

void test_threads(void) {
  check_two_threads();
  check_destruction(0);
  check_destruction(1);
  check_crowd();
}
