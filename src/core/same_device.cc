// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/same_device.h"

#include <fmt/format.h>

namespace moebius {

// Messages are formatted only for a failure, because some calls take only microseconds.
void expect_on(const Tensor& tensor, Device device, std::string_view what, Where where) {
  if (tensor.device() != device) {
    expect_eq(to_string(tensor.device()), to_string(device), fmt::format("device of {}", what),
              where);
  }
}

void expect_stream(const Stream& stream, Device device, Where where) {
  if (device.is_cuda() && stream.device() != device) {
    expect_eq(to_string(stream.device()), to_string(device), "device of the stream", where);
  }
}

}  // namespace moebius
