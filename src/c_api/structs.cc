// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/structs.h"

#include <fmt/format.h>

#include <algorithm>

namespace moebius::c_api {

namespace {
// No struct will ever be that large, so the size was not set.
constexpr size_t kMostBytes = 4096;
}  // namespace

void expect_struct(const void* given, size_t given_size, size_t first_size, std::string_view what) {
  expect(given != nullptr, [&] { return fmt::format("{} is null, expected a struct", what); });
  expect(given_size >= first_size && given_size <= kMostBytes, [&] {
    return fmt::format("struct_size of {} is {}, expected {}: sizeof(the struct)", what, given_size,
                       first_size);
  });
}

void expect_known(const void* given, size_t given_size, size_t known_size, std::string_view what) {
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (given_size > known_size &&
      std::any_of(bytes + known_size, bytes + given_size, [](auto byte) { return byte != 0; })) {
    throw Unsupported(
        fmt::format("{} has {} bytes and uses fields that this library, which knows {}, does not "
                    "have",
                    what, given_size, known_size));
  }
}

}  // namespace moebius::c_api
