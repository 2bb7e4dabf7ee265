// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the calls of high throughput and of low latency share, on CPUs and on GPUs.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string_view>
#include <type_traits>

#include "core/same_device.h"
#include "moebius/dispatch.h"

namespace moebius {

// Throws InvalidArgument for an expert on a rank that the group does not have.
inline void expect_placed(const ExpertPlacement& placement, const Group& group) {
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    expect(placement.rank_of(e) < group.size(), [&] {
      return fmt::format("expert {} is placed on rank {}, but the group has {} ranks", e,
                         placement.rank_of(e), group.size());
    });
  }
}

// Throws InvalidArgument unless the tensor is absent or is of this kind.
inline void expect_operand(const Tensor& tensor,
                           const Shape& shape,
                           DType dtype,
                           Device device,
                           std::string_view what,
                           Where where = Where::current()) {
  if (tensor) {
    expect_shape(tensor, shape, what, where);
    expect_dtype(tensor, dtype, what, where);
    expect_on(tensor, device, what, where);
  }
}

// A combine as its caller gave it, for as long as the call lasts.
template <typename Input, typename Handle>
struct CombineCall {
  const Input& input;
  const Handle& handle;
  const Stream& stream;
  const Tensor& out;
};

// The two halves of a call under way.  `finish` ends the transfer: the hook calls it, once, and
// `receive` comes after it even where nobody calls the hook.
template <typename Finish, typename Receive>
Pending<std::invoke_result_t<Receive>> in_halves(Finish finish, Receive receive) {
  const auto hook = [finish, is_finished = std::make_shared<bool>(false)] {
    if (!*is_finished) {
      finish();
      *is_finished = true;
    }
  };
  return {hook, [hook, receive] {
            hook();
            return receive();
          }};
}

}  // namespace moebius
