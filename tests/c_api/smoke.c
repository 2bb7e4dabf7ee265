/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moebius_c.h"

static void check(moebius_status status, const char* what) {
  if (status != MOEBIUS_OK) {
    moebius_error_info info = {sizeof(info), 0, 0, 0, 0, NULL};
    moebius_last_error(&info);
    fprintf(stderr, "%s: %s: %s\n", what, moebius_status_name(status), info.message);
    exit(1);
  }
}
#define CHECK(call) check((call), #call)

int main(void) {
  const char* dir = "/tmp/c_api_smoke_model";
  char command[200];
  moebius_checkpoint checkpoint;
  moebius_layer layer;
  moebius_layer_info info;
  float hidden[4 * 512], output[4 * 512];
  size_t i;
  moebius_tensor h, o;
  moebius_layer_input input;
  moebius_model_info model;
  snprintf(command, sizeof(command), "rm -rf %s", dir);
  if (system(command) != 0)
    return 1;
  CHECK(moebius_make_model("tiny", 1, NULL, 0, dir, NULL));
  CHECK(moebius_checkpoint_open(dir, &checkpoint));
  memset(&model, 0, sizeof(model));
  model.struct_size = sizeof(model);
  CHECK(moebius_checkpoint_get_info(checkpoint, &model));
  printf("%s hidden %d\n", model.family, (int)model.hidden);
  CHECK(moebius_layer_load(checkpoint, -1, NULL, NULL, NULL, NULL, &layer));
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  CHECK(moebius_layer_get_info(layer, &info));
  printf("%s %s %d\n", info.experts, info.backend, (int)info.hidden);
  memset(&h, 0, sizeof(h));
  h.struct_size = sizeof(h);
  h.data = hidden;
  h.dtype = MOEBIUS_F32;
  h.num_dims = 2;
  h.shape[0] = 4;
  h.shape[1] = info.hidden;
  o = h;
  o.data = output;
  for (i = 0; i < 4 * 512; ++i)
    hidden[i] = (float)(i % 7) - 3.0f;
  memset(&input, 0, sizeof(input));
  input.struct_size = sizeof(input);
  input.hidden = &h;
  CHECK(moebius_layer_forward(layer, &input, &o, NULL));
  printf("%g %g\n", (double)output[0], (double)output[1]);
  CHECK(moebius_layer_destroy(layer));
  if (moebius_layer_destroy(layer) != MOEBIUS_INVALID_ARGUMENT)
    return 1;
  CHECK(moebius_checkpoint_destroy(checkpoint));
  return 0;
}
