/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses, the last error of a thread, versions and sizes of structs. */
#include <pthread.h>
#include <stdlib.h>

#include "tests/c_api/check.h"

static moebius_error_info last(void) {
  moebius_error_info info = {.struct_size = sizeof(info)};
  CHECK_OK(moebius_last_error(&info));
  return info;
}

static void* in_a_new_thread(void* unused) {
  (void)unused;
  moebius_error_info info = last();
  CHECK_EQ(info.status, MOEBIUS_OK);
  CHECK_EQ(info.rank, -1);
  CHECK_EQ(info.peer, -1);
  CHECK_TEXT(info.message, "");
  CHECK_INVALID(moebius_setting_at(-1, NULL));
  info = last();
  CHECK(strstr(info.message, "-1") != NULL);
  return NULL;
}

void test_status(void) {
  pthread_t thread;
  moebius_tensor tensor;
  float a[4] = {1, 2, 3, 4}, b[4] = {0};

  CHECK_EQ(moebius_abi_version(), MOEBIUS_ABI_VERSION);
  CHECK(atoi(moebius_version()) >= 0 && strchr(moebius_version(), '.') != NULL);
  for (moebius_status s = MOEBIUS_OK; s <= MOEBIUS_ERROR; ++s) {
    for (moebius_status other = MOEBIUS_OK; other < s; ++other) {
      CHECK(strcmp(moebius_status_name(s), moebius_status_name(other)) != 0);
    }
  }
  CHECK_TEXT(moebius_status_name(MOEBIUS_OK), "ok");
  CHECK_TEXT(moebius_status_name(-1), "unknown status");
  CHECK_TEXT(moebius_status_name(99), "unknown status");

  /* Errors belong to threads, and a call that succeeds leaves them. */
  CHECK_INVALID(moebius_dequantize(NULL, NULL, NULL, NULL));
  CHECK_EQ(pthread_create(&thread, NULL, in_a_new_thread, NULL), 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK_OK(moebius_set_setting("MOEBIUS_THREADS", NULL));
  CHECK_EQ(last().status, MOEBIUS_INVALID_ARGUMENT);
  CHECK(strstr(last().message, "null") != NULL);
  /* A message is one line of UTF-8, whatever is in a name. */
  CHECK_INVALID(moebius_set_setting("two\nlines\xff", NULL));
  CHECK(strstr(last().message, "two\\x0alines\\xff") != NULL);
  CHECK_INVALID(moebius_last_error(NULL));
  CHECK_FILLED_STRUCT(moebius_error_info, moebius_last_error(given));

  tensor = vector_of(a, MOEBIUS_F32, 4);
  const moebius_tensor to = vector_of(b, MOEBIUS_F32, 4);
  CHECK_STRUCT_SIZES(moebius_tensor, tensor, moebius_copy(given, &to, NULL));
  CHECK_EQ(memcmp(a, b, sizeof(a)), 0);
}
