// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0

// What a user of the installed package writes: public headers, functions from the library, and an
// exception that crosses its border.
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
