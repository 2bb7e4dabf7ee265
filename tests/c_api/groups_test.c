/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of threads: collectives, splits, failures, and what is refused. */
#include <stdlib.h>

#include "tests/c_api/check.h"

static moebius_group_info info_of(moebius_group group) {
  moebius_group_info info = {.struct_size = sizeof(info)};
  CHECK_OK(moebius_group_get_info(group, &info));
  return info;
}

static void collectives(moebius_group* group, int rank, void* user) {
  const moebius_group_info info = info_of(*group);
  CHECK(user == NULL);
  CHECK_EQ(info.rank, rank);
  CHECK_EQ(info.size, 4);
  CHECK_EQ(info.num_nodes, 2); /* pretended: two ranks each */
  CHECK_EQ(info.node, rank / 2);
  CHECK_EQ(info.local_rank, rank % 2);
  CHECK_EQ(info.ranks_on_node, 2);
  CHECK_EQ(info.device.type, MOEBIUS_CPU);
  CHECK_EQ(info.timeout_ms, 20000);
  CHECK_TEXT(info.name, "threads");
  CHECK_OK(moebius_group_barrier(*group));

  const int64_t mine[2] = {rank, 100 * rank};
  int64_t all[4][2] = {{0}};
  CHECK_OK(moebius_group_all_gather(*group, mine, sizeof(mine), all));
  for (int r = 0; r < 4; ++r) {
    CHECK_EQ(all[r][0], r);
    CHECK_EQ(all[r][1], 100 * r);
  }
  CHECK_OK(moebius_group_all_gather(*group, NULL, 0, NULL));
  CHECK_EQ(info_of(*group).bytes_sent, 3 * (int64_t)sizeof(mine));

  /* Ranks 0 and 1, and 2 and 3, are parts; within them the later rank comes first. */
  moebius_group part = NULL;
  CHECK_OK(moebius_group_split(*group, rank / 2, -rank, &part));
  CHECK_EQ(info_of(part).size, 2);
  CHECK_EQ(info_of(part).rank, 1 - rank % 2);
  int32_t neighbours[2], me = rank;
  CHECK_OK(moebius_group_all_gather(part, &me, sizeof(me), neighbours));
  CHECK_EQ(neighbours[0], rank / 2 * 2 + 1);
  CHECK_EQ(neighbours[1], rank / 2 * 2);
  /* A part may outlive the group, which goes on without it. */
  moebius_group none = UNTOUCHED;
  CHECK_OK(moebius_group_split(*group, rank == 3 ? -1 : 0, 0, &none));
  CHECK((none == NULL) == (rank == 3));
  CHECK_OK(moebius_group_destroy(none));
  CHECK_OK(moebius_group_barrier(*group));
  CHECK_OK(moebius_group_destroy(*group));
  CHECK_INVALID(moebius_group_barrier(*group));
  *group = NULL;
  CHECK_OK(moebius_group_barrier(part));
  CHECK_OK(moebius_group_destroy(part));
}

/* Rank 2 gives up; the others are told why, and by whom. */
static void abortion(moebius_group* group, int rank, void* user) {
  (void)user;
  if (rank == 2) {
    CHECK_INVALID(moebius_group_abort(*group, NULL));
    CHECK_OK(moebius_group_abort(*group, "out of tea"));
    return;
  }
  moebius_error_info error = {.struct_size = sizeof(error)};
  CHECK_FAILS(MOEBIUS_COMM_ERROR, moebius_group_barrier(*group));
  CHECK_OK(moebius_last_error(&error));
  CHECK_EQ(error.rank, rank);
  CHECK_EQ(error.peer, 2);
  CHECK_EQ(error.peer_is_silent, 0);
  CHECK(strstr(error.message, "out of tea") != NULL);
  CHECK_FAILS(MOEBIUS_COMM_ERROR, moebius_group_barrier(*group)); /* it stays broken */
}

/* Rank 1 leaves without a word. */
static void departure(moebius_group* group, int rank, void* user) {
  (void)user;
  if (rank != 1) {
    moebius_error_info error = {.struct_size = sizeof(error)};
    CHECK_FAILS(MOEBIUS_COMM_ERROR, moebius_group_barrier(*group));
    CHECK_OK(moebius_last_error(&error));
    CHECK_EQ(error.peer, 1);
    CHECK_EQ(error.peer_is_silent, 1);
  }
}

/* While a rank is excluded, collective calls are refused. */
static void exclusion(moebius_group* group, int rank, void* user) {
  (void)user;
  CHECK_OK(moebius_group_barrier(*group));
  if (rank == 0) {
    CHECK_OK(moebius_group_set_dead(*group, 1, 1));
    CHECK_FAILS(MOEBIUS_COMM_ERROR, moebius_group_barrier(*group));
    CHECK_OK(moebius_group_set_dead(*group, 1, 0));
    CHECK_INVALID(moebius_group_set_dead(*group, 2, 1));
    CHECK_INVALID(moebius_group_set_dead(*group, -1, 1));
    CHECK_INVALID(moebius_group_set_dead(*group, 1, 2));
  }
}

static void check_makers(void) {
  moebius_group groups[2] = {UNTOUCHED, UNTOUCHED}, made = UNTOUCHED;
  moebius_group_options options = {.struct_size = sizeof(options)};
  CHECK_INVALID(moebius_make_thread_groups(2, NULL, NULL));
  CHECK_INVALID(moebius_make_thread_groups(0, NULL, groups));
  CHECK_INVALID(moebius_make_thread_groups(-3, NULL, groups));
  CHECK_INVALID(moebius_make_thread_groups(INT32_MAX, NULL, groups));
  options.timeout_ms = -1;
  CHECK_INVALID(moebius_make_thread_groups(2, &options, groups));
  options.timeout_ms = INT64_MAX;
  CHECK_INVALID(moebius_make_thread_groups(2, &options, groups));
  options.timeout_ms = 0;
  options.ranks_per_node = -1;
  CHECK_INVALID(moebius_make_thread_groups(2, &options, groups));
  CHECK(groups[0] == UNTOUCHED && groups[1] == UNTOUCHED);
  options.ranks_per_node = 0;
  CHECK_STRUCT_SIZES(moebius_group_options, options, moebius_make_thread_groups(1, given, groups));
  CHECK_OK(moebius_group_destroy(groups[0]));

  /* One rank is a group, too. */
  CHECK_OK(moebius_make_thread_groups(1, NULL, groups));
  CHECK_OK(moebius_group_barrier(groups[0]));
  CHECK_FILLED_STRUCT(moebius_group_info, moebius_group_get_info(groups[0], given));
  int32_t in = 5, out = 0;
  CHECK_OK(moebius_group_all_gather(groups[0], &in, sizeof(in), &out));
  CHECK_EQ(out, 5);
  CHECK_INVALID(moebius_group_all_gather(groups[0], &in, -1, &out));
  CHECK_INVALID(moebius_group_all_gather(groups[0], NULL, 4, &out));
  CHECK_INVALID(moebius_group_all_gather(groups[0], &in, 4, NULL));
  CHECK_INVALID(moebius_group_split(groups[0], 0, 0, NULL));
  moebius_group_info info = {.struct_size = sizeof(info)};
  CHECK_BAD_HANDLES(moebius_group, NULL, moebius_group_get_info(handle, &info));
  CHECK_BAD_HANDLES(moebius_group, NULL, moebius_group_barrier(handle));
  CHECK_BAD_HANDLES(moebius_group, NULL, moebius_group_all_gather(handle, &in, 4, &out));
  CHECK_BAD_HANDLES(moebius_group, NULL, moebius_group_split(handle, 0, 0, &made));
  CHECK_BAD_HANDLES(moebius_group, NULL, moebius_group_abort(handle, "why"));
  CHECK_BAD_HANDLES(moebius_group, NULL, moebius_group_set_dead(handle, 0, 1));
  CHECK_BAD_HANDLES(moebius_group, NULL, moebius_make_cuda_group(handle, 0, &made));
  CHECK_BAD_HANDLES(moebius_group, NULL, moebius_make_nccl_group(handle, 0, NULL, &made));

  /* GPUs.  After an error the host group is still the caller's. */
  CHECK_INVALID(moebius_make_cuda_group(groups[0], -1, &made));
  CHECK_INVALID(moebius_make_cuda_group(groups[0], 0, NULL));
  CHECK_INVALID(moebius_make_nccl_group(groups[0], 0, NULL, NULL));
  CHECK_INVALID(moebius_make_nccl_group_of(NULL, 0, &made));
  CHECK_INVALID(moebius_make_nccl_group_of(&in, 0, NULL));
  if (moebius_cuda_device_count() == 0) {
    CHECK_FAILS(MOEBIUS_UNSUPPORTED, moebius_make_cuda_group(groups[0], 0, &made));
    CHECK_FAILS(MOEBIUS_UNSUPPORTED, moebius_make_nccl_group(groups[0], 0, NULL, &made));
  }
  /* What was made from a host group would lose it. */
  moebius_transports transports = NULL;
  CHECK_OK(moebius_transports_create(groups[0], &transports));
  CHECK_INVALID(moebius_make_cuda_group(groups[0], 0, &made));
  CHECK_OK(moebius_transports_destroy(transports));
  CHECK(made == UNTOUCHED);
  CHECK_OK(moebius_group_barrier(groups[0]));
  CHECK_OK(moebius_group_destroy(groups[0]));
  CHECK_INVALID(moebius_group_destroy(groups[0]));
  CHECK_OK(moebius_group_destroy(NULL));
}

void test_groups(void) {
  const moebius_group_options two_nodes = {
      .struct_size = sizeof(two_nodes), .ranks_per_node = 2, .timeout_ms = 20000};
  run_ranks(4, &two_nodes, collectives, NULL);
  run_ranks(4, NULL, abortion, NULL);
  run_ranks(3, NULL, departure, NULL);
  run_ranks(2, NULL, exclusion, NULL);
  check_makers();
}
