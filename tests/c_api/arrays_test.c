/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Dtypes, streams, events, arrays, and tensors as calls read them: strides, flags, alignment. */
#include "tests/c_api/check.h"

static const moebius_device kCpu = {MOEBIUS_CPU, 0};

static void check_dtypes(void) {
  static const struct {
    const char* name;
    int32_t bits;
  } kExpected[] = {{"f32", 32},   {"f16", 16}, {"bf16", 16},  {"f8e4m3", 8}, {"f8e5m2", 8},
                   {"i8", 8},     {"u8", 8},   {"i32", 32},   {"i64", 64},   {"bool", 8},
                   {"f4e2m1", 4}, {"u4", 4},   {"f6e3m2", 6}, {"f6e2m3", 6}, {"e8m0", 8}};
  for (int32_t dtype = 0; dtype <= MOEBIUS_E8M0; ++dtype) {
    CHECK_TEXT(moebius_dtype_name(dtype), kExpected[dtype].name);
    CHECK_EQ(moebius_dtype_bits(dtype), kExpected[dtype].bits);
  }
  CHECK(moebius_dtype_name(-1) == NULL && moebius_dtype_name(MOEBIUS_E8M0 + 1) == NULL);
  CHECK_EQ(moebius_dtype_bits(-1), 0);
  CHECK_EQ(moebius_dtype_bits(MOEBIUS_E8M0 + 1), 0);
}

static void check_streams(void) {
  moebius_stream stream = NULL, untouched = UNTOUCHED;
  moebius_array array = NULL;
  CHECK_OK(moebius_stream_cpu(2, &stream));
  CHECK_OK(moebius_stream_synchronize(stream));
  CHECK_OK(moebius_stream_synchronize(NULL));
  uint64_t capture = 1;
  CHECK_OK(moebius_stream_capture_id(stream, &capture));
  CHECK_EQ(capture, 0);
  CHECK_INVALID(moebius_stream_capture_id(stream, NULL));
  void* native = stream;
  CHECK_OK(moebius_stream_get_cuda(stream, &native));
  CHECK(native == NULL);
  native = stream;
  CHECK_OK(moebius_stream_get_cuda(NULL, &native));
  CHECK(native == NULL);
  CHECK_INVALID(moebius_stream_get_cuda(stream, NULL));
  CHECK_INVALID(moebius_stream_cpu(-1, &untouched));
  CHECK_INVALID(moebius_stream_cpu(0, NULL));
  CHECK_INVALID(moebius_stream_cuda(-1, &untouched));
  CHECK_INVALID(moebius_stream_wrap_cuda(NULL, -1, &untouched));
  if (moebius_cuda_device_count() == 0) {
    CHECK_FAILS(MOEBIUS_UNSUPPORTED, moebius_stream_cuda(0, &untouched));
    CHECK_FAILS(MOEBIUS_UNSUPPORTED, moebius_stream_wrap_cuda(NULL, 0, &untouched));
  }
  CHECK(untouched == UNTOUCHED);
  CHECK_OK(moebius_array_empty(MOEBIUS_F32, kCpu, 0, NULL, &array));
  CHECK_OK(moebius_array_record_stream(array, stream));
  CHECK_OK(moebius_array_record_stream(array, NULL));
  CHECK_INVALID(moebius_array_record_stream(array, UNTOUCHED));
  CHECK_BAD_HANDLES(moebius_array, stream, moebius_array_record_stream(handle, stream));
  CHECK_BAD_OPTIONAL(moebius_stream, array, moebius_stream_get_cuda(handle, &native));
  CHECK_BAD_OPTIONAL(moebius_stream, array, moebius_stream_destroy(handle));
  CHECK_OK(moebius_array_destroy(array));
  CHECK_OK(moebius_stream_destroy(stream));
  CHECK_INVALID(moebius_stream_destroy(stream));
  CHECK_INVALID(moebius_stream_synchronize(stream));
  CHECK_INVALID(moebius_stream_capture_id(stream, &capture));
  CHECK_OK(moebius_stream_destroy(NULL));
}

/* On the CPU there is nothing to wait for, and every call is checked all the same. */
static void check_events(void) {
  moebius_stream stream = NULL, other = NULL;
  moebius_event event = NULL, untouched = UNTOUCHED;
  int32_t is_complete = 0;
  CHECK_OK(moebius_stream_cpu(1, &stream));
  CHECK_OK(moebius_stream_cpu(2, &other));
  CHECK_OK(moebius_stream_wait_stream(stream, other));
  CHECK_OK(moebius_stream_wait_stream(stream, stream));
  CHECK_OK(moebius_stream_wait_stream(NULL, NULL));
  CHECK_OK(moebius_stream_record(stream, &event));
  CHECK_OK(moebius_stream_wait(stream, event));
  CHECK_OK(moebius_stream_wait(NULL, event));
  CHECK_OK(moebius_event_is_complete(event, &is_complete));
  CHECK_EQ(is_complete, 1);
  CHECK_INVALID(moebius_stream_record(stream, NULL));
  CHECK_INVALID(moebius_event_is_complete(event, NULL));
  CHECK_BAD_OPTIONAL(moebius_stream, event, moebius_stream_wait_stream(handle, stream));
  CHECK_BAD_OPTIONAL(moebius_stream, event, moebius_stream_wait_stream(stream, handle));
  CHECK_BAD_OPTIONAL(moebius_stream, event, moebius_stream_record(handle, &untouched));
  CHECK_BAD_OPTIONAL(moebius_stream, event, moebius_stream_wait(handle, event));
  CHECK_BAD_HANDLES(moebius_event, stream, moebius_stream_wait(stream, handle));
  CHECK_BAD_HANDLES(moebius_event, stream, moebius_event_is_complete(handle, &is_complete));
  CHECK_BAD_OPTIONAL(moebius_event, stream, moebius_event_destroy(handle));
  CHECK(untouched == UNTOUCHED);
  CHECK_OK(moebius_stream_destroy(stream));
  CHECK_OK(moebius_stream_wait(other, event)); /* it outlives its stream */
  CHECK_OK(moebius_event_destroy(event));
  CHECK_INVALID(moebius_stream_wait(other, event));
  CHECK_OK(moebius_event_destroy(NULL));
  CHECK_OK(moebius_stream_destroy(other));
}

static void check_arrays(void) {
  const int64_t shape[5] = {2, 3, 4, 5, 6}, huge[2] = {INT64_MAX, INT64_MAX};
  const int64_t negative[2] = {2, -1}, none[2] = {0, 7}, odd[2] = {2, 3};
  const moebius_device unknown = {9, 0};
  moebius_tensor view = {.struct_size = sizeof(view)};
  moebius_array array = NULL, untouched = UNTOUCHED;
  CHECK_OK(moebius_array_empty(MOEBIUS_BF16, kCpu, 4, shape, &array));
  CHECK_OK(moebius_array_view(array, &view));
  CHECK_EQ(view.dtype, MOEBIUS_BF16);
  CHECK_EQ(view.device.type, MOEBIUS_CPU);
  CHECK_EQ(view.num_dims, 4);
  CHECK_EQ(view.flags, 0);
  CHECK_EQ((uintptr_t)view.data % 256, 0);
  for (int i = 0; i < 4; ++i) {
    CHECK_EQ(view.shape[i], shape[i]);
  }
  CHECK_EQ(view.strides[3], 1);
  CHECK_EQ(view.strides[0], 60);
  memset(view.data, 0, 2 * 120);
  CHECK_FILLED_STRUCT(moebius_tensor, moebius_array_view(array, given));
  CHECK_BAD_HANDLES(moebius_array, NULL, moebius_array_view(handle, &view));
  CHECK_OK(moebius_array_destroy(array));
  CHECK_INVALID(moebius_array_destroy(array));
  CHECK_INVALID(moebius_array_view(array, &view));
  CHECK_OK(moebius_array_destroy(NULL));

  CHECK_OK(moebius_array_empty(MOEBIUS_F32, kCpu, 2, none, &array));
  CHECK(array != NULL);
  CHECK_OK(moebius_array_view(array, &view));
  CHECK_EQ(view.shape[0], 0);
  CHECK_OK(moebius_array_destroy(array));

  CHECK_INVALID(moebius_array_empty(MOEBIUS_F32, kCpu, 5, shape, &untouched));
  CHECK_INVALID(moebius_array_empty(MOEBIUS_F32, kCpu, INT32_MAX, shape, &untouched));
  CHECK_INVALID(moebius_array_empty(MOEBIUS_F32, kCpu, -1, shape, &untouched));
  CHECK_INVALID(moebius_array_empty(MOEBIUS_F32, kCpu, 2, NULL, &untouched));
  CHECK_INVALID(moebius_array_empty(MOEBIUS_F32, kCpu, 2, huge, &untouched));
  CHECK_INVALID(moebius_array_empty(MOEBIUS_F32, kCpu, 2, negative, &untouched));
  CHECK_INVALID(moebius_array_empty(MOEBIUS_F4E2M1, kCpu, 2, odd, &untouched));
  CHECK_INVALID(moebius_array_empty(-1, kCpu, 2, shape, &untouched));
  CHECK_INVALID(moebius_array_empty(15, kCpu, 2, shape, &untouched));
  CHECK_INVALID(moebius_array_empty(MOEBIUS_F32, unknown, 2, shape, &untouched));
  CHECK_INVALID(moebius_array_empty(MOEBIUS_F32, kCpu, 2, shape, NULL));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they end the process */
  const int64_t large[1] = {INT64_MAX / 32};
  CHECK_FAILS(MOEBIUS_OUT_OF_MEMORY, moebius_array_empty(MOEBIUS_F32, kCpu, 1, large, &untouched));
#endif
  CHECK(untouched == UNTOUCHED);
}

/* Copies: columns of a matrix, a transposed one, a row that is repeated, packed types. */
static void check_copies(void) {
  float from[4][6], to[24];
  fill(&from[0][0], 24, 5);
  moebius_tensor x = matrix_of(&from[0][2], MOEBIUS_F32, 4, 3);
  moebius_tensor y = matrix_of(to, MOEBIUS_F32, 4, 3);
  x.strides[0] = 6;
  x.strides[1] = 1;
  CHECK_OK(moebius_copy(&x, &y, NULL));
  CHECK_EQ(memcmp(&to[3], &from[1][2], 3 * sizeof(float)), 0);

  x = matrix_of(from, MOEBIUS_F32, 6, 4); /* transposed */
  x.strides[0] = 1;
  x.strides[1] = 6;
  y = matrix_of(to, MOEBIUS_F32, 6, 4);
  CHECK_OK(moebius_copy(&x, &y, NULL));
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 4; ++j) {
      CHECK(to[i * 4 + j] == from[j][i]);
    }
  }
  CHECK_INVALID(moebius_copy(&y, &x, NULL)); /* outputs are contiguous */

  x = matrix_of(from, MOEBIUS_F32, 4, 6); /* a row, four times */
  x.strides[1] = 1;
  y = matrix_of(to, MOEBIUS_F32, 4, 6);
  CHECK_OK(moebius_copy(&x, &y, NULL));
  CHECK_EQ(memcmp(&to[18], from, 6 * sizeof(float)), 0);

  unsigned char packed[2][3] = {{1, 2, 3}, {4, 5, 6}}, unpacked[4] = {0};
  x = matrix_of(packed, MOEBIUS_U4, 2, 4); /* of 6 elements in a row */
  x.strides[0] = 6;
  x.strides[1] = 1;
  y = matrix_of(unpacked, MOEBIUS_U4, 2, 4);
  CHECK_OK(moebius_copy(&x, &y, NULL));
  CHECK_EQ(unpacked[2], 4);
  CHECK_EQ(unpacked[3], 5);
}

/* Messages have the device's owner and both values. */
static void check_names_of_devices(void) {
  float memory[4] = {0};
  moebius_tensor x = vector_of(memory, MOEBIUS_F32, 4);
  moebius_error_info error = {.struct_size = sizeof(error)};
  x.device.type = 2;
  CHECK_INVALID(moebius_copy(&x, &x, NULL));
  CHECK_OK(moebius_last_error(&error));
  CHECK(strstr(error.message, "device of from is 2, expected 0 to 1") != NULL);
  x.device.type = MOEBIUS_CPU;
  x.device.index = 3;
  CHECK_INVALID(moebius_copy(&x, &x, NULL));
  CHECK_OK(moebius_last_error(&error));
  CHECK(strstr(error.message, "index of device of from, which is the CPU, is 3, expected 0") !=
        NULL);
  CHECK_INVALID(moebius_trim_memory(x.device));
  CHECK_OK(moebius_last_error(&error));
  CHECK(strstr(error.message, "index of device, which is the CPU, is 3, expected 0") != NULL);
}

/* Every way to be no tensor, as an input and as an output; nothing is written. */
static void check_refusals(void) {
  float from[8] = {1, 2, 3, 4, 5, 6, 7, 8}, to[8] = {0};
  const moebius_tensor x = vector_of(from, MOEBIUS_F32, 4);
  const moebius_tensor y = vector_of(to, MOEBIUS_F32, 4);
  moebius_tensor bad[] = {x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
  const size_t num_bad = sizeof(bad) / sizeof(bad[0]);
  bad[0].struct_size = 0;
  bad[1].dtype = -1;
  bad[2].dtype = 15;
  bad[3].device.type = 2;
  bad[4].device.index = -1;
  bad[5].num_dims = -1;
  bad[6].num_dims = 5;
  bad[7].num_dims = INT32_MAX;
  bad[8].shape[0] = -4;
  bad[9].flags = 2;
  bad[10].data = NULL;
  bad[11].data = (char*)from + 1;
  bad[12].strides[0] = -1;
  bad[13].data = NULL;
  bad[13].strides[0] = 2;
  bad[14].num_dims = 3;
  bad[14].shape[0] = bad[14].shape[1] = bad[14].shape[2] = INT64_MAX / 2;
  bad[15] = bad[14];
  bad[15].strides[0] = INT64_MAX / 2;
  bad[16].dtype = MOEBIUS_U4;
  bad[16].shape[0] = 3;
  bad[17].device.index = 3;
  bad[18].strides[0] = INT64_MAX / 2;
  for (size_t i = 0; i < num_bad; ++i) {
    CHECK_INVALID(moebius_copy(&bad[i], &y, NULL));
    CHECK_INVALID(moebius_copy(&y, &bad[i], NULL));
  }
  CHECK_INVALID(moebius_copy(NULL, &y, NULL));
  CHECK_INVALID(moebius_copy(&x, NULL, NULL));
  const moebius_tensor constant = read_only(y), other = vector_of(to, MOEBIUS_I32, 4);
  const moebius_tensor longer = vector_of(to, MOEBIUS_F32, 5);
  const moebius_tensor overlapping = vector_of(from + 2, MOEBIUS_F32, 4);
  CHECK_INVALID(moebius_copy(&x, &constant, NULL));
  CHECK_INVALID(moebius_copy(&x, &other, NULL));
  CHECK_INVALID(moebius_copy(&x, &longer, NULL));
  CHECK_INVALID(moebius_copy(&x, &overlapping, NULL));
  CHECK_BAD_OPTIONAL(moebius_stream, from, moebius_copy(&x, &y, handle));
  for (int i = 0; i < 8; ++i) {
    CHECK(to[i] == 0);
    CHECK(from[i] == (float)(i + 1));
  }
  const moebius_tensor constant_input = read_only(x);
  CHECK_OK(moebius_copy(&constant_input, &y, NULL));
  CHECK_EQ(memcmp(from, to, 4 * sizeof(float)), 0);
  /* Without elements there need be no memory. */
  const moebius_tensor none = matrix_of(NULL, MOEBIUS_F32, 0, 9);
  CHECK_OK(moebius_copy(&none, &none, NULL));
}

void test_arrays(void) {
  check_dtypes();
  check_streams();
  check_events();
  check_arrays();
  check_copies();
  check_names_of_devices();
  check_refusals();
}
