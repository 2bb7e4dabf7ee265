// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/into.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/routing/payloads.h"
#include "core/parallel.h"
#include "core/same_device.h"

namespace moebius {

namespace {

// Checks one tensor for rows like those of `like`; the first one says how many there is room for.
void expect_room(const Tensor& given,
                 const Tensor& like,
                 Device device,
                 std::string_view what,
                 std::optional<int64_t>& rows) {
  if (!given) {
    return;
  }
  expect_defined(like, fmt::format("what is to be written into {}", what));
  expect_ge(given.num_dims(), 1, fmt::format("dimensions of {}", what));
  rows = rows.value_or(given.dim(0));
  expect_shape(given, with_rows(like, *rows), what);
  expect_dtype(given, like.dtype(), what);
  expect_on(given, device, what);
  expect_writable(given, what);
}

// Copies the rows of `from` to the first ones of `to`.
Tensor move_rows(const Tensor& from, const Tensor& to, const Stream& stream) {
  constexpr int64_t kRowsPerTask = 64;
  const Tensor there = to.slice(0, from.dim(0));
  if (from.device().is_cuda()) {
    copy(from, there, stream);
    return there;
  }
  const int64_t row_bytes = from.dim(0) > 0 ? from.nbytes() / from.dim(0) : 0;
  parallel_for(stream, from.dim(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    std::memcpy(there.bytes() + begin * row_bytes, from.bytes() + begin * row_bytes,
                static_cast<size_t>((end - begin) * row_bytes));
  });
  return there;
}

bool any_given(const std::vector<Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor& tensor) { return tensor.defined(); });
}

}  // namespace

DispatchRoom::DispatchRoom(DispatchInto into, const DispatchInto& like, Device device)
    : into_(std::move(into)) {
  std::optional<int64_t> rows;
  if (!into_.payloads.empty()) {
    expect_eq(std::ssize(into_.payloads), std::ssize(like.payloads), "payloads of into");
  }
  for (size_t i = 0; i < into_.payloads.size(); ++i) {
    expect_room(into_.payloads[i], like.payloads[i], device, fmt::format("payload {} of into", i),
                rows);
  }
  expect_room(into_.topk_ids, like.topk_ids, device, "topk_ids of into", rows);
  expect_room(into_.topk_weights, like.topk_weights, device, "topk_weights of into", rows);
  rows_ = *rows;
}

void DispatchRoom::expect_room_for(int64_t most_rows) const {
  expect_le(most_rows, rows_, "most rows of a rank (rows of into)");
}

void DispatchRoom::move_in(DispatchOutput& output, const Stream& stream) const {
  for (size_t i = 0; i < into_.payloads.size(); ++i) {
    if (into_.payloads[i]) {
      output.payloads[i] = move_rows(output.payloads[i], into_.payloads[i], stream);
    }
  }
  if (into_.topk_ids) {
    output.topk_ids = move_rows(output.topk_ids, into_.topk_ids, stream);
  }
  if (into_.topk_weights) {
    output.topk_weights = move_rows(output.topk_weights, into_.topk_weights, stream);
  }
  output.event = stream.record();
}

std::optional<DispatchRoom> make_dispatch_room(const DispatchInput& input, Device device) {
  const DispatchInto& into = input.into;
  if (!into.topk_ids && !into.topk_weights && !any_given(into.payloads)) {
    return std::nullopt;
  }
  DispatchRoom room(into, {input.payloads, input.topk_ids, input.topk_weights}, device);
  expect_ge(room.rows(), input.capacity, "rows of into (capacity)");
  expect_eq(input.early_rows, 0, "early_rows with into");
  return room;
}

std::optional<DispatchRoom> make_dispatch_room(const CachedDispatchInput& input, Device device) {
  return any_given(input.into)
             ? std::optional(DispatchRoom({input.into, {}, {}}, {input.payloads, {}, {}}, device))
             : std::nullopt;
}

}  // namespace moebius
