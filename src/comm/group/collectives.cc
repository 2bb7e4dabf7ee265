// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives on top of Group::exchange, so that they are the same for every group.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "comm/device/sum_parts.h"
#include "comm/group/blocks.h"
#include "core/allocate.h"
#include "core/parallel.h"
#include "moebius/group.h"

namespace moebius {

namespace {

// The offsets [R + 1] of the ranks' rows.  Checks the counts.
std::vector<int64_t> offsets_of(const Group& group,
                                std::span<const int64_t> counts,
                                std::string_view op) {
  expect_eq(static_cast<int64_t>(counts.size()), group.size(),
            fmt::format("{}: number of counts", op));
  std::vector<int64_t> offsets(1, 0);
  for (size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] < 0) {
      expect_ge(counts[r], 0, fmt::format("{}: counts[{}]", op, r));
    }
    offsets.push_back(offsets.back() + counts[r]);
  }
  return offsets;
}

void expect_rows(const Group& group,
                 const Tensor& tensor,
                 int64_t rows,
                 std::string_view op,
                 std::string_view what) {
  expect_defined(tensor, fmt::format("{}: {}", op, what));
  expect_ge(tensor.num_dims(), 1, fmt::format("{}: dimensions of {}", op, what));
  expect_eq(tensor.dim(0), rows, fmt::format("{}: {}.dim(0)", op, what));
  expect(tensor.device().is_cpu() || tensor.device() == group.device(), [&] {
    return fmt::format("{}: {} is on {}, expected cpu{}", op, what, to_string(tensor.device()),
                       group.device().is_cpu() ? "" : " or " + to_string(group.device()));
  });
}

// The bytes of one row.  Checks that both tensors have rows of the same shape, dtype and device.
int64_t row_bytes_of(const Tensor& in, const Tensor& out, std::string_view op) {
  expect_dtype(out, in.dtype(), fmt::format("{}: out", op));
  expect_eq(to_string(out.device()), to_string(in.device()),
            fmt::format("{}: device of out, after that of in,", op));
  const auto row_shape = [](const Tensor& tensor) {
    std::vector<int64_t> dims;
    for (int i = 1; i < tensor.num_dims(); ++i) {
      dims.push_back(tensor.dim(i));
    }
    return Shape(dims);
  };
  expect_eq(to_string(row_shape(out)), to_string(row_shape(in)),
            fmt::format("{}: rows of out, after those of in,", op));
  const Shape row = row_shape(in);
  if (row.size() == 0) {
    return row_bytes(in.dtype(), 1);
  }
  return row.back() == 0 ? 0 : row.numel() / row.back() * row_bytes(in.dtype(), row.back());
}

// Rows that belong to the ranks, one rank after the other.
struct RankRows {
  std::byte* data = nullptr;
  std::vector<int64_t> offsets;  // [R + 1] the first row of each rank
  int64_t row_bytes = 0;

  std::byte* of(int rank) const { return data + offsets[static_cast<size_t>(rank)] * row_bytes; }
  int64_t bytes_of(int rank) const { return of(rank + 1) - of(rank); }
  SendBlock to(int peer) const { return {peer, of(peer), bytes_of(peer)}; }
  RecvBlock from(int peer) const { return {peer, of(peer), bytes_of(peer)}; }
};

template <typename T>
void sum_in_rank_order(std::span<const std::byte* const> parts,
                       int64_t begin,
                       int64_t end,
                       T* out) {
  // The parts are added one after the other over a stretch that stays in the first-level cache.
  // Why: parts may lie at equal offsets of a page, and then evict each other when they are read
  // element by element.
  constexpr int64_t kStretch = 1024;
  std::array<float, kStretch> sums;
  for (; begin < end; begin += kStretch) {
    const int64_t n = std::min(kStretch, end - begin);
    sums.fill(0.0f);
    for (const std::byte* part : parts) {
      const T* from = reinterpret_cast<const T*>(part) + begin;
      for (int64_t i = 0; i < n; ++i) {
        sums[static_cast<size_t>(i)] += static_cast<float>(from[i]);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      out[begin + i] = static_cast<T>(sums[static_cast<size_t>(i)]);
    }
  }
}

void sum_parts(std::span<const std::byte* const> parts, const Tensor& out, const Stream& stream) {
  constexpr int64_t kGrain = 16 * 1024;  // elements; enough to pay for handing out a task
  parallel_for(stream, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
    switch (out.dtype()) {
      case DType::kF32:
        return sum_in_rank_order(parts, begin, end, out.data<float>());
      case DType::kBF16:
        return sum_in_rank_order(parts, begin, end, out.data<BFloat16>());
      default:
        return sum_in_rank_order(parts, begin, end, out.data<Float16>());
    }
  });
}

void exchange_rows(Group& group,
                   std::string_view op,
                   const comm::BlockLists& blocks,
                   Device device,
                   const Stream& stream) {
  if (device.is_cpu()) {
    group.exchange(op, blocks.sends, blocks.recvs);
  } else {
    group.exchange_on(stream, op, blocks.sends, blocks.recvs);
  }
}

// Gathers the parts of the peers and then sums them, since the contract fixes the order of the sum.
void reduce_scatter_on_gpu(Group& group,
                           std::string_view op,
                           const RankRows& in,
                           const Tensor& out,
                           const Stream& stream) {
  const std::shared_ptr<void> gathered = allocate_on((group.size() - 1) * out.nbytes(), stream);
  comm::RankParts parts{in.of(group.rank()), static_cast<std::byte*>(gathered.get()), group.rank(),
                        group.size()};
  comm::BlockLists blocks;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != group.rank()) {
      const int slot = peer - (peer > group.rank() ? 1 : 0);
      blocks.add(in.to(peer), {peer, parts.others + slot * out.nbytes(), out.nbytes()});
    }
  }
  group.exchange_on(stream, op, blocks.sends, blocks.recvs);
  comm::launch_sum_parts(parts, out, stream);
}

}  // namespace

void all_gather_bytes(Group& group, std::string_view op, const void* in, int64_t bytes, void* out) {
  comm::BlockLists blocks;
  for (int peer = 0; peer < group.size(); ++peer) {
    blocks.add({peer, in, bytes}, {peer, static_cast<std::byte*>(out) + peer * bytes, bytes});
  }
  group.exchange(op, blocks.sends, blocks.recvs);
}

void all_gatherv(Group& group,
                 std::string_view op,
                 const Tensor& in,
                 std::span<const int64_t> counts,
                 const Tensor& out,
                 const Stream& stream) {
  auto offsets = offsets_of(group, counts, op);
  expect_rows(group, in, counts[static_cast<size_t>(group.rank())], op, "in");
  expect_rows(group, out, offsets.back(), op, "out");
  expect_writable(out, "out");
  const RankRows rows{out.bytes(), std::move(offsets), row_bytes_of(in, out, op)};
  comm::BlockLists blocks;
  for (int peer = 0; peer < group.size(); ++peer) {
    blocks.add({peer, in.raw(), in.nbytes()}, rows.from(peer));
  }
  exchange_rows(group, op, blocks, in.device(), stream);
}

void reduce_scatterv(Group& group,
                     std::string_view op,
                     const Tensor& in,
                     std::span<const int64_t> counts,
                     const Tensor& out,
                     const Stream& stream) {
  auto offsets = offsets_of(group, counts, op);
  expect_rows(group, in, offsets.back(), op, "in");
  expect_rows(group, out, counts[static_cast<size_t>(group.rank())], op, "out");
  expect_writable(out, "out");
  const DType dtype = in.dtype();
  expect(is_float(dtype), [&] {
    return fmt::format("{}: in has dtype {}, expected f32, bf16 or f16", op, name(dtype));
  });
  const RankRows rows{in.bytes(), std::move(offsets), row_bytes_of(in, out, op)};
  if (in.device().is_cuda()) {
    return reduce_scatter_on_gpu(group, op, rows, out, stream);
  }
  comm::BlockLists blocks;
  for (int peer = 0; peer < group.size(); ++peer) {
    blocks.add(rows.to(peer), {peer, nullptr, out.nbytes()});
    group.count_traffic(peer, rows.bytes_of(peer));
  }
  group.exchange(op, blocks.sends, blocks.recvs,
                 [&](std::span<const std::byte* const> parts) { sum_parts(parts, out, stream); });
}

void all_to_allv(Group& group,
                 std::string_view op,
                 const Tensor& in,
                 std::span<const int64_t> send_counts,
                 std::span<const int64_t> recv_counts,
                 const Tensor& out,
                 const Stream& stream) {
  RankRows sent{nullptr, offsets_of(group, send_counts, op)};
  RankRows received{nullptr, offsets_of(group, recv_counts, op)};
  expect_rows(group, in, sent.offsets.back(), op, "in");
  expect_rows(group, out, received.offsets.back(), op, "out");
  sent.row_bytes = received.row_bytes = row_bytes_of(in, out, op);
  sent.data = in.bytes();
  received.data = out.bytes();
  comm::BlockLists blocks;
  for (int peer = 0; peer < group.size(); ++peer) {
    blocks.add(sent.to(peer), received.from(peer));
  }
  exchange_rows(group, op, blocks, in.device(), stream);
}

void all_reduce_sum(Group& group, std::string_view op, std::span<int64_t> values) {
  std::vector<int64_t> all(values.size() * static_cast<size_t>(group.size()));
  all_gather_bytes(group, op, values.data(), static_cast<int64_t>(values.size_bytes()), all.data());
  std::fill(values.begin(), values.end(), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    values[i % values.size()] += all[i];
  }
}

int64_t all_reduce_max(Group& group, std::string_view op, int64_t value) {
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  all_gather_bytes(group, op, &value, sizeof(value), all.data());
  return *std::max_element(all.begin(), all.end());
}

}  // namespace moebius
