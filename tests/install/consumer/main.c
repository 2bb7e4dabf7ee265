/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* A C program of a user of the installed package.  argv[1] is the version that it shall find. */
#include <stdio.h>
#include <string.h>

#include "moebius_c.h"

int main(int argc, char** argv) {
  const int64_t shape[2] = {2, 3};
  const moebius_device cpu = {MOEBIUS_CPU, 0};
  moebius_array array = NULL;
  moebius_tensor view = {.struct_size = sizeof(view)};
  if (argc != 2 || strcmp(argv[1], moebius_version()) != 0 ||
      moebius_abi_version() != MOEBIUS_ABI_VERSION) {
    fprintf(stderr, "version %s with ABI %d, expected %s with %d\n", moebius_version(),
            moebius_abi_version(), argc == 2 ? argv[1] : "one", MOEBIUS_ABI_VERSION);
    return 1;
  }
  if (moebius_array_empty(MOEBIUS_F32, cpu, 2, shape, &array) != MOEBIUS_OK ||
      moebius_array_view(array, &view) != MOEBIUS_OK || view.shape[1] != 3) {
    return 1;
  }
  return moebius_array_destroy(array) == MOEBIUS_OK ? 0 : 1;
}
