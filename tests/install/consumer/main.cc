// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0

// A program of a user of the installed package.  It uses public headers, functions of the library,
// and an exception that the library throws.
#include <iostream>

#include "moebius/dtype.h"
#include "moebius/error.h"

int main() {
  if (moebius::name(moebius::DType::kBF16) != "bf16") {
    std::cerr << "unexpected name of kBF16: " << moebius::name(moebius::DType::kBF16) << '\n';
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
