// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/routing/payloads.h"

#include <fmt/format.h>

#include "core/same_device.h"

namespace moebius {

namespace {

// Texts of errors are made only where a check fails, because some dispatches take microseconds.
// The name is short enough to cost nothing.
void expect_payload(const Tensor& p, size_t i, int64_t num_tokens, Device device) {
  const std::string name = "payload " + std::to_string(i);
  expect_defined(p, name);
  expect(p.num_dims() >= 1, [&] {
    return fmt::format("dimensions of {} is {}, expected at least 1", name, p.num_dims());
  });
  expect(p.dim(0) == num_tokens,
         [&] { return fmt::format("rows of {} is {}, expected {}", name, p.dim(0), num_tokens); });
  expect_on(p, device, name);
}

}  // namespace

std::vector<int64_t> payload_row_bytes(std::span<const Tensor> payloads,
                                       int64_t num_tokens,
                                       Device device) {
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < payloads.size(); ++i) {
    const Tensor& p = payloads[i];
    expect_payload(p, i, num_tokens, device);
    int64_t row_elements = 1;
    for (int d = 1; d < p.num_dims(); ++d) {
      row_elements *= p.dim(d);
    }
    bytes.push_back(row_bytes(p.dtype(), row_elements));
  }
  return bytes;
}

Shape with_rows(const Tensor& payload, int64_t rows) {
  std::vector<int64_t> dims = {rows};
  for (int d = 1; d < payload.num_dims(); ++d) {
    dims.push_back(payload.dim(d));
  }
  return Shape(std::span<const int64_t>(dims));
}

}  // namespace moebius
