// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A program of a user of the installed package.  It uses public headers, functions of the library,
// a class of its own behind an interface of the library, and an exception that the library throws.
// argv[1] is the version that it shall find.
#include <iostream>
#include <string_view>

#include "moebius/error.h"
#include "moebius/group.h"
#include "moebius/prepare_finalize.h"
#include "moebius/version.h"

namespace {

class OwnBackend : public moebius::PrepareFinalize {
 public:
  OwnBackend() : PrepareFinalize({.name = "own"}) {}
  moebius::Support accepts(moebius::WeightAndReduceKind) const override {
    return moebius::Support::yes();
  }
  moebius::Support accepts(const moebius::QuantConfig&, bool) const override {
    return moebius::Support::yes();
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || moebius::version() != argv[1] || MOEBIUS_VERSION != std::string_view(argv[1])) {
    std::cerr << "library " << moebius::version() << ", headers " << MOEBIUS_VERSION << '\n';
    return 1;
  }
  int64_t sum = 0;
  moebius::run_thread_ranks({.num_ranks = 2}, [&](moebius::Group& group) {
    const int64_t all = moebius::all_reduce_max(group, "largest rank", group.rank());
    if (group.rank() == 0) {
      sum = all;
    }
  });
  if (sum != 1 || OwnBackend().name() != "own") {
    std::cerr << "the largest of two ranks is " << sum << '\n';
    return 1;
  }
  try {
    moebius::expect_eq(7000, 7168, "hidden");
  } catch (const moebius::InvalidArgument& error) {
    std::cout << error.what() << '\n';
    return 0;
  }
  std::cerr << "expect_eq did not throw\n";
  return 1;
}
