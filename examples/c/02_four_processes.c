/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four processes: each owns a quarter of the experts of a layer.  All that the processes need is a
 * way to gather a few bytes; here it is a pipe to each of them.  Rows travel to the experts and
 * back through memory that the processes share.  The argument is a Hugging Face model folder;
 * without it a tiny synthetic model is written first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moebius_c.h"

enum { kNumRanks = 4, kNumTokens = 8 };

/* Ends the process with the message of a call that has failed; other ranks then end, too. */
static void check(moebius_status status) {
  if (status != MOEBIUS_OK) {
    moebius_error_info error = {.struct_size = sizeof(error)};
    moebius_last_error(&error);
    fprintf(stderr, "%s: %s\n", moebius_status_name(status), error.message);
    _exit(1);
  }
}

/* One pipe per rank, which all ranks write to and only that rank reads.  A message says whose it
 * is, and is short enough to arrive in one piece. */
typedef struct pipes {
  int rank;
  int ends[kNumRanks][2];
} pipes;

static int32_t all_gather(void* user, const void* in, int64_t bytes, void* out) {
  const pipes* all = user;
  char message[1024];
  const size_t length = sizeof(int) + (size_t)bytes;
  if (length > sizeof(message)) {
    return 1;
  }
  memcpy(message, &all->rank, sizeof(int));
  memcpy(message + sizeof(int), in, (size_t)bytes);
  for (int to = 0; to < kNumRanks; ++to) {
    if (write(all->ends[to][1], message, length) != (ssize_t)length) {
      return 1;
    }
  }
  for (int i = 0; i < kNumRanks; ++i) {
    int from = 0;
    if (read(all->ends[all->rank][0], message, length) != (ssize_t)length) {
      return 1;
    }
    memcpy(&from, message, sizeof(int));
    memcpy((char*)out + from * bytes, message + sizeof(int), (size_t)bytes);
  }
  return 0;
}

/* A view of kNumTokens rows of f32. */
static moebius_tensor tokens_of(float* data, int64_t row_size) {
  return (moebius_tensor){.struct_size = sizeof(moebius_tensor),
                          .data = data,
                          .dtype = MOEBIUS_F32,
                          .num_dims = 2,
                          .shape = {kNumTokens, row_size}};
}

/* What this rank's tokens become in a layer of the group, or, without one, in a whole layer. */
static void run_layer(const char* folder, moebius_group group, float* hidden, float* output) {
  moebius_checkpoint checkpoint;
  moebius_layer layer;
  moebius_layer_info info = {.struct_size = sizeof(info)};
  check(moebius_checkpoint_open(folder, &checkpoint));
  check(moebius_layer_load(checkpoint, -1, NULL, NULL, group, NULL, &layer));
  check(moebius_layer_get_info(layer, &info));
  const moebius_tensor in = tokens_of(hidden, info.hidden);
  const moebius_tensor out = tokens_of(output, info.hidden);
  const moebius_layer_input input = {.struct_size = sizeof(input), .hidden = &in};
  check(moebius_layer_forward(layer, &input, &out, NULL));
  check(moebius_layer_destroy(layer));
  check(moebius_checkpoint_destroy(checkpoint));
}

static int64_t hidden_size(const char* folder) {
  moebius_checkpoint checkpoint;
  moebius_model_info info = {.struct_size = sizeof(info)};
  check(moebius_checkpoint_open(folder, &checkpoint));
  check(moebius_checkpoint_get_info(checkpoint, &info));
  check(moebius_checkpoint_destroy(checkpoint));
  return info.hidden;
}

static int run_rank(pipes* all, const char* folder, int makes_model) {
  moebius_group group;
  if (makes_model && all->rank == 0) { /* the other ranks wait for this one in the next call */
    check(moebius_make_model("tiny", 1, NULL, 0, folder, NULL));
  }
  alarm(60); /* all_gather itself has no deadline */
  check(moebius_make_process_group(all->rank, kNumRanks, all_gather, all, NULL, &group));
  alarm(0); /* from here on every wait has one */

  const size_t count = (size_t)(kNumTokens * hidden_size(folder));
  float* hidden = malloc(count * sizeof(float));
  float* together = malloc(count * sizeof(float));
  float* alone = malloc(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    hidden[i] = (float)((i * 7 + (size_t)all->rank) % 13) / 13 - 0.5f;
  }
  run_layer(folder, group, hidden, together);
  run_layer(folder, NULL, hidden, alone);
  float difference = 0, largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const float d = together[i] < alone[i] ? alone[i] - together[i] : together[i] - alone[i];
    const float size = alone[i] < 0 ? -alone[i] : alone[i];
    difference = d > difference ? d : difference;
    largest = size > largest ? size : largest;
  }
  printf("rank %d: outputs up to %g, and %g apart from those of one process\n", all->rank,
         (double)largest, (double)difference);
  fflush(stdout);
  check(moebius_group_destroy(group));
  free(hidden);
  free(together);
  free(alone);
  return largest > 0 && difference <= 0.02f * largest ? 0 : 1;
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : "/tmp/moebius_c_example_processes";
  pipes all = {.rank = 0};
  for (int rank = 0; rank < kNumRanks; ++rank) {
    if (pipe(all.ends[rank]) != 0) {
      perror("pipe");
      return 1;
    }
  }
  for (all.rank = 0; all.rank < kNumRanks; ++all.rank) {
    if (fork() == 0) {
      _exit(run_rank(&all, folder, argc == 1));
    }
  }
  int num_right = 0;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    int status = 1;
    wait(&status);
    num_right += status == 0;
  }
  printf("%d of %d processes agree\n", num_right, kNumRanks);
  return num_right == kNumRanks ? 0 : 1;
}
