// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/rows/batched_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/cuda/slot_order.h"
#include "core/ids.h"
#include "core/parallel.h"
#include "experts/cuda/rows/permute.h"
#include "layer/rows/cuda/rows.h"

namespace moebius {

namespace {

// The bytes u8 [rows, n] of a tensor with so many rows.
Tensor as_bytes(const Tensor& tensor, int64_t rows) {
  return tensor.reinterpret(DType::kU8, {rows, tensor.nbytes() / rows});
}

// Copies the token of each selection to its row of x [L, max_rows, ...].
void gather(const Tensor& tokens,
            const BatchedRows& rows,
            int64_t topk,
            const Tensor& x,
            const Stream& stream) {
  constexpr int64_t kRowsPerTask = 8;
  const auto row_bytes = static_cast<size_t>(tokens.nbytes() / std::max<int64_t>(1, tokens.dim(0)));
  parallel_for(
      stream, static_cast<int64_t>(rows.row.size()), kRowsPerTask, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = rows.row[static_cast<size_t>(i)];
          if (row >= 0) {
            std::memcpy(x.bytes() + static_cast<size_t>(row) * row_bytes,
                        tokens.bytes() + static_cast<size_t>(i / topk) * row_bytes, row_bytes);
          }
        }
      });
}

void place_on_gpu(const PlaceRows& args, const Stream& stream) {
  const int64_t num_local_experts = args.rows.dim(0);
  const int64_t max_rows = args.rows.dim(1);
  const int64_t num_rows = num_local_experts * max_rows;
  const Tensor& row_of_slot = args.scratch;
  cuda_order_slots({.ids = args.local_ids,
                    .num_local_experts = num_local_experts,
                    .max_rows = max_rows,
                    .row_of_slot = row_of_slot},
                   stream);
  cuda_count_rows(row_of_slot, max_rows, args.counts, stream);
  cuda_permute_rows({args.x, row_of_slot, args.rows.view({num_rows, args.rows.dim(2)})}, stream);
  for (size_t i = 0; i < args.beside.size() && args.x.dim(0) > 0; ++i) {
    cuda_permute_rows({as_bytes(args.beside[i], args.x.dim(0)), row_of_slot,
                       as_bytes(args.rows_beside[i], num_rows)},
                      stream);
  }
}

}  // namespace

BatchedRows batched_rows(const Tensor& ids,
                         int64_t first_expert,
                         int64_t num_local_experts,
                         int64_t max_rows) {
  BatchedRows result;
  result.row.assign(static_cast<size_t>(ids.numel()), -1);
  result.counts.assign(static_cast<size_t>(num_local_experts), 0);
  const Ids id = Ids::of(ids);
  for (size_t i = 0; i < result.row.size(); ++i) {
    const int32_t own = id[static_cast<int64_t>(i)];
    const int64_t expert = own - first_expert;
    if (own >= 0 && expert >= 0 && expert < num_local_experts) {
      int32_t& count = result.counts[static_cast<size_t>(expert)];
      result.row[i] = expert * max_rows + count++;
    }
  }
  for (size_t e = 0; e < result.counts.size(); ++e) {
    expect_le(result.counts[e], max_rows, fmt::format("number of rows for local expert {}", e));
  }
  return result;
}

TensorSpec place_rows_scratch(const Shape& ids, Device device) {
  return {device.is_cuda() ? ids : Shape{0}, DType::kI32};
}

void place_rows(const PlaceRows& args, const Stream& stream) {
  if (args.rows.device().is_cuda()) {
    return place_on_gpu(args, stream);
  }
  const int64_t topk = args.local_ids.dim(1);
  const BatchedRows rows = batched_rows(args.local_ids, 0, args.rows.dim(0), args.rows.dim(1));
  std::copy(rows.counts.begin(), rows.counts.end(), args.counts.data<int32_t>());
  gather(args.x, rows, topk, args.rows, stream);
  for (size_t i = 0; i < args.beside.size(); ++i) {
    gather(args.beside[i], rows, topk, args.rows_beside[i], stream);
  }
}

}  // namespace moebius
