// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Structs of the C API begin with their size and only grow.  A program may be older than the
// library (its structs are shorter) or newer (they are longer, and what is unknown here must be
// zero).
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "c_api/status.h"
#include "moebius/error.h"

namespace moebius::c_api {

// Throws InvalidArgument for null, and for a size that cannot be that of a struct.
void expect_struct(const void* given, size_t given_size, size_t first_size, std::string_view what);
// Throws Unsupported unless the bytes from `known_size` on are zero.
void expect_known(const void* given, size_t given_size, size_t known_size, std::string_view what);

// A copy of the caller's struct, in which fields that the program does not know are zero.  All
// structs still have their first size.
template <typename T>
T read_struct(const T* given, std::string_view what) {
  expect_struct(given, given == nullptr ? 0 : given->struct_size, sizeof(T), what);
  expect_known(given, given->struct_size, sizeof(T), what);
  return *given;
}

// The same where null stands for all defaults.
template <typename T>
T read_optional(const T* given, std::string_view what) {
  return given == nullptr ? T{} : read_struct(given, what);
}

// Writes the fields that the program knows, and leaves the size as it is.
template <typename T>
void write_struct(T* out, std::string_view what, const T& values) {
  expect_struct(out, out == nullptr ? 0 : out->struct_size, sizeof(T), what);
  const size_t size = out->struct_size;
  *out = values;
  out->struct_size = size;
}

// Throws InvalidArgument for a null place of a result.
template <typename T>
T& expect_out(T* out, std::string_view what) {
  expect(out != nullptr, [&] { return std::string(what) + " is null, expected a place to write"; });
  return *out;
}

// As guarded(), for a function that writes to `out`, which must be there, what the body returns.
template <typename T, typename Body>
moebius_status giving(T* out, std::string_view what, Body&& body) noexcept {
  return guarded([&] {
    T& place = expect_out(out, what);
    place = std::forward<Body>(body)();
  });
}

}  // namespace moebius::c_api
