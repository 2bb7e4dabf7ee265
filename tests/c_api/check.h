/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the C tests share: checks that end the process with file, line and both values, and helpers
 * that build tensors and run ranks.  Every area of the API is one file with one function.
 */
#ifndef MOEBIUS_TESTS_C_API_CHECK_H_
#define MOEBIUS_TESTS_C_API_CHECK_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "moebius_c.h"

typedef struct check_place {
  const char* file;
  int line;
  const char* text;
} check_place;
#define HERE(text) ((check_place){__FILE__, __LINE__, text})

void check_equal(int64_t got, int64_t expected, check_place where);
void check_near(double got, double expected, double tolerance, check_place where);
void check_text(const char* got, const char* expected, check_place where);
/* For another status than MOEBIUS_OK, moebius_last_error must describe the same failure. */
void check_status(moebius_status got, moebius_status expected, check_place where);

#define CHECK(condition) check_equal((condition) ? 1 : 0, 1, HERE(#condition))
#define CHECK_EQ(got, expected) check_equal((int64_t)(got), (int64_t)(expected), HERE(#got))
#define CHECK_NEAR(got, expected, tolerance) \
  check_near((double)(got), (double)(expected), (double)(tolerance), HERE(#got))
#define CHECK_TEXT(got, expected) check_text(got, expected, HERE(#got))
#define CHECK_OK(call) check_status((call), MOEBIUS_OK, HERE(#call))
#define CHECK_FAILS(status, call) check_status((call), (status), HERE(#call))
#define CHECK_INVALID(call) CHECK_FAILS(MOEBIUS_INVALID_ARGUMENT, call)

/* Handles that stand for nothing, or for an object of another kind.  CHECK_BAD_HANDLES makes the
 * call with each of them as `handle`, and each must be refused. */
#define NUM_BAD_HANDLES 8
typedef struct bad_handles {
  uintptr_t values[NUM_BAD_HANDLES];
} bad_handles;
/* `other` is a live handle of a kind that the call does not take. */
bad_handles make_bad_handles(const void* other);
#define CHECK_BAD_HANDLES(type, other, call) CHECK_EACH_BAD_HANDLE(0, type, other, call)
/* The same where NULL stands for none. */
#define CHECK_BAD_OPTIONAL(type, other, call) CHECK_EACH_BAD_HANDLE(1, type, other, call)
#define CHECK_EACH_BAD_HANDLE(first, type, other, call)                       \
  do {                                                                        \
    const bad_handles bad_ = make_bad_handles(other);                         \
    for (size_t bad_idx_ = (first); bad_idx_ < NUM_BAD_HANDLES; ++bad_idx_) { \
      const type handle = (type)bad_.values[bad_idx_];                        \
      check_status((call), MOEBIUS_INVALID_ARGUMENT, HERE(#call));            \
    }                                                                         \
  } while (0)

/* Makes the call with wrong sizes of a struct, as `given`: no size, one that is too small or too
 * large to be one, and one that is larger than the library knows.  Only the last is accepted, if
 * what is unknown is zero.  `value` is a struct with which the call succeeds. */
#define CHECK_STRUCT_SIZES(type, value, call)                    \
  do {                                                           \
    struct {                                                     \
      type known;                                                \
      unsigned char unknown[64];                                 \
    } larger_;                                                   \
    type* const given = &larger_.known;                          \
    memset(&larger_, 0, sizeof(larger_));                        \
    larger_.known = (value);                                     \
    given->struct_size = 0;                                      \
    check_status((call), MOEBIUS_INVALID_ARGUMENT, HERE(#call)); \
    given->struct_size = sizeof(type) - 1;                       \
    check_status((call), MOEBIUS_INVALID_ARGUMENT, HERE(#call)); \
    given->struct_size = 4097;                                   \
    check_status((call), MOEBIUS_INVALID_ARGUMENT, HERE(#call)); \
    given->struct_size = sizeof(larger_);                        \
    larger_.unknown[63] = 1;                                     \
    check_status((call), MOEBIUS_UNSUPPORTED, HERE(#call));      \
    larger_.unknown[63] = 0;                                     \
    check_status((call), MOEBIUS_OK, HERE(#call));               \
  } while (0)

/* The same for a struct that the call fills: it leaves what it does not know as it is. */
#define CHECK_FILLED_STRUCT(type, call)                          \
  do {                                                           \
    struct {                                                     \
      type known;                                                \
      unsigned char unknown[64];                                 \
    } larger_;                                                   \
    type* given = NULL;                                          \
    check_status((call), MOEBIUS_INVALID_ARGUMENT, HERE(#call)); \
    given = &larger_.known;                                      \
    memset(&larger_, 0x5a, sizeof(larger_));                     \
    given->struct_size = sizeof(type) - 1;                       \
    check_status((call), MOEBIUS_INVALID_ARGUMENT, HERE(#call)); \
    given->struct_size = 4097;                                   \
    check_status((call), MOEBIUS_INVALID_ARGUMENT, HERE(#call)); \
    CHECK_EQ(((unsigned char*)given)[sizeof(size_t)], 0x5a);     \
    given->struct_size = sizeof(larger_);                        \
    check_status((call), MOEBIUS_OK, HERE(#call));               \
    CHECK_EQ(given->struct_size, sizeof(larger_));               \
    CHECK_EQ(larger_.unknown[0], 0x5a);                          \
  } while (0)

/* What an output place holds before a call that must not touch it. */
#define UNTOUCHED ((void*)0x77)

/* Views of contiguous memory on the CPU. */
moebius_tensor vector_of(void* data, int32_t dtype, int64_t n);
moebius_tensor matrix_of(void* data, int32_t dtype, int64_t rows, int64_t cols);
moebius_tensor cube_of(void* data, int32_t dtype, int64_t a, int64_t b, int64_t c);
moebius_tensor read_only(moebius_tensor tensor);

/* Fills with numbers in [-1, 1) that depend on the seed alone. */
void fill(float* out, size_t n, uint32_t seed);
/* The rest of a division by n, of a number that depends on the seed alone. */
int32_t pick(uint32_t seed, int32_t n);

/* Runs the body on num_ranks threads, each with its group, and destroys the groups.  Ranks may have
 * destroyed theirs, and then have set it to NULL. */
typedef void (*rank_body)(moebius_group* group, int rank, void* user);
void run_ranks(int num_ranks, const moebius_group_options* options, rank_body body, void* user);

/* The array of a result, which must exist; the caller destroys it.  *view describes it. */
moebius_array array_of(moebius_result result, const char* name, int index, moebius_tensor* view);

/* Experts of gated silu: w1 [E, 2 * I, H], gate rows first, and w2 [E, H, I]. */
typedef struct experts_values {
  const float *w1, *w2;
  int hidden, intermediate;
} experts_values;
/* out += expert `e`, in double and without rounding: weight * W2 silu(g) u. */
void add_expert(const experts_values* all, int e, const float* x, double weight, double* out);

/* A folder under the temporary one that is empty, and one that is removed with what is in it. */
void make_folder(char* path, size_t room);
void remove_folder(const char* path);

#endif
