/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the areas that are named, or all. */
#include <stdio.h>
#include <string.h>

#define AREA(name) void test_##name(void);
#include "tests/c_api/areas.h"
#undef AREA

static const struct {
  const char* name;
  void (*run)(void);
} kAreas[] = {
#define AREA(name) {#name, test_##name},
#include "tests/c_api/areas.h"
#undef AREA
};

int main(int argc, char** argv) {
  const size_t num_areas = sizeof(kAreas) / sizeof(kAreas[0]);
  int num_run = 0;
  for (size_t i = 0; i < num_areas; ++i) {
    int is_wanted = argc == 1;
    for (int a = 1; a < argc; ++a) {
      is_wanted = is_wanted || strcmp(argv[a], kAreas[i].name) == 0;
    }
    if (is_wanted) {
      kAreas[i].run();
      printf("%s: ok\n", kAreas[i].name);
      fflush(stdout);
      ++num_run;
    }
  }
  if (num_run < argc - 1 || num_run == 0) {
    fprintf(stderr, "%d of %d areas exist\n", num_run, argc - 1);
    return 2;
  }
  return 0;
}
