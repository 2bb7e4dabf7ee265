/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of processes that the caller has forked, with pipes as the all-gather; and of MPI. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/c_api/check.h"

enum { R = 4 };

/* Pipes from every rank to every rank. */
typedef struct pipes {
  int rank;
  int fds[R][R][2]; /* [from][to] */
  int num_calls;
} pipes;

static int32_t gather(void* user, const void* in, int64_t bytes, void* out) {
  pipes* const self = user;
  ++self->num_calls;
  for (int to = 0; to < R; ++to) {
    if (write(self->fds[self->rank][to][1], in, (size_t)bytes) != (ssize_t)bytes) {
      return errno;
    }
  }
  for (int from = 0; from < R; ++from) {
    char* const place = (char*)out + from * bytes;
    for (int64_t done = 0; done < bytes;) {
      const ssize_t got =
          read(self->fds[from][self->rank][0], place + done, (size_t)(bytes - done));
      if (got <= 0) {
        return errno;
      }
      done += got;
    }
  }
  return 0;
}

static int run_rank(pipes* all, int rank) {
  const moebius_group_options options = {.struct_size = sizeof(options), .timeout_ms = 20000};
  moebius_group_info info = {.struct_size = sizeof(info)};
  moebius_error_info error = {.struct_size = sizeof(error)};
  moebius_group group = NULL;
  int32_t ranks[R] = {0};
  all->rank = rank;
  CHECK_OK(moebius_make_process_group(rank, R, gather, all, &options, &group));
  CHECK_EQ(all->num_calls, 1);
  CHECK_OK(moebius_group_get_info(group, &info));
  CHECK_EQ(info.rank, rank);
  CHECK_EQ(info.size, R);
  CHECK_TEXT(info.name, "processes");
  CHECK_OK(moebius_group_all_gather(group, &info.rank, sizeof(int32_t), ranks));
  for (int r = 0; r < R; ++r) {
    CHECK_EQ(ranks[r], r);
  }
  if (rank == 3) { /* dies; the others are told at once */
    _exit(7);
  }
  CHECK_FAILS(MOEBIUS_COMM_ERROR, moebius_group_barrier(group));
  CHECK_OK(moebius_last_error(&error));
  CHECK_EQ(error.peer, 3);
  CHECK_OK(moebius_group_destroy(group));
  return 0;
}

static int32_t refuse(void* user, const void* in, int64_t bytes, void* out) {
  (void)in;
  (void)bytes;
  (void)out;
  return *(int32_t*)user;
}

void test_processes(void) {
  pipes all = {0};
  pid_t children[R];
  moebius_group group = UNTOUCHED;
  int32_t answer = 42;
  moebius_error_info error = {.struct_size = sizeof(error)};
  for (int from = 0; from < R; ++from) {
    for (int to = 0; to < R; ++to) {
      CHECK_EQ(pipe(all.fds[from][to]), 0);
    }
  }
  fflush(NULL);
  for (int rank = 0; rank < R; ++rank) {
    children[rank] = fork();
    if (children[rank] == 0) {
      _exit(run_rank(&all, rank));
    }
  }
  for (int rank = 0; rank < R; ++rank) {
    int status = -1;
    CHECK_EQ(waitpid(children[rank], &status, 0), children[rank]);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), rank == 3 ? 7 : 0);
  }
  CHECK_FAILS(MOEBIUS_ERROR, moebius_make_process_group(0, 2, refuse, &answer, NULL, &group));
  CHECK_OK(moebius_last_error(&error));
  CHECK(strstr(error.message, "42") != NULL);
  CHECK_INVALID(moebius_make_process_group(0, 2, NULL, NULL, NULL, &group));
  CHECK_INVALID(moebius_make_process_group(2, 2, refuse, &answer, NULL, &group));
  CHECK_INVALID(moebius_make_process_group(-1, 2, refuse, &answer, NULL, &group));
  CHECK_INVALID(moebius_make_process_group(0, 0, refuse, &answer, NULL, &group));
  CHECK_INVALID(moebius_make_process_group(0, 100000, refuse, &answer, NULL, &group));
  CHECK_INVALID(moebius_make_process_group(0, 2, refuse, &answer, NULL, NULL));
  CHECK(group == UNTOUCHED);
  const moebius_group_options options = {.struct_size = sizeof(options)};
  answer = 1;
  CHECK_FAILS(MOEBIUS_ERROR, moebius_make_process_group(0, 2, refuse, &answer, &options, &group));
}

/* A process alone is an MPI job of one; a build without MPI says so. */
void test_mpi(void) {
  moebius_group group = UNTOUCHED;
  moebius_group_options options = {.struct_size = 1};
  CHECK_INVALID(moebius_make_mpi_group(NULL, NULL, NULL));
  CHECK_INVALID(moebius_make_mpi_group(NULL, &options, &group));
  CHECK(group == UNTOUCHED);
  const moebius_status status = moebius_make_mpi_group(NULL, NULL, &group);
  if (status == MOEBIUS_UNSUPPORTED) {
    CHECK(group == UNTOUCHED);
    return;
  }
  CHECK_OK(status);
  moebius_group_info info = {.struct_size = sizeof(info)};
  CHECK_OK(moebius_group_get_info(group, &info));
  CHECK_TEXT(info.name, "mpi");
  CHECK_EQ(info.size, 1);
  CHECK_OK(moebius_group_barrier(group));
  CHECK_OK(moebius_group_destroy(group));
}
