// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Orders received copies into one row per selection, grouped by local expert.
#include <cstring>
#include <vector>

#include "comm/high_throughput/cpu/cpu_transport.h"
#include "comm/routing/payloads.h"
#include "core/parallel.h"

namespace moebius {

ExpertOrder CpuHighThroughput::expert_order(const DispatchOutput& output,
                                            int64_t expert_alignment,
                                            const Stream& stream) const {
  const int64_t num_local = placement.num_local(rank());
  const int64_t num_copies = output.topk_ids.dim(0);
  const int64_t topk = output.topk_ids.dim(1);
  const Ids ids = Ids::of(output.topk_ids);

  ExpertOrder order;
  order.expert_offsets = Tensor::zeros({num_local + 1}, DType::kI32);
  auto* offsets = order.expert_offsets.data<int32_t>();
  for (int64_t i = 0; i < num_copies * topk; ++i) {
    if (ids[i] >= 0) {
      ++offsets[ids[i] + 1];
    }
  }
  const auto alignment = static_cast<int32_t>(expert_alignment);
  for (int64_t l = 0; l < num_local; ++l) {
    offsets[l + 1] = offsets[l] + (offsets[l + 1] + alignment - 1) / alignment * alignment;
  }
  const int64_t rows = offsets[num_local];
  order.copy_row = Tensor::empty({rows}, DType::kI32);
  order.slot = Tensor::zeros({rows}, DType::kI32);
  auto* copy_row = order.copy_row.data<int32_t>();
  std::fill_n(copy_row, rows, -1);
  std::vector<int32_t> next(offsets, offsets + num_local);
  for (int64_t copy = 0; copy < num_copies; ++copy) {  // copies are in (source rank, token) order
    for (int64_t k = 0; k < topk; ++k) {
      const int32_t expert = ids[copy * topk + k];
      if (expert >= 0) {
        const int32_t row = next[static_cast<size_t>(expert)]++;
        copy_row[row] = static_cast<int32_t>(copy);
        order.slot.data<int32_t>()[row] = static_cast<int32_t>(k);
      }
    }
  }

  for (const Tensor& payload : output.payloads) {
    const Tensor sorted = Tensor::empty(with_rows(payload, rows), payload.dtype());
    const auto bytes = static_cast<size_t>(rows > 0 ? sorted.nbytes() / rows : 0);
    parallel_for(stream, rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::byte* to = sorted.bytes() + static_cast<size_t>(row) * bytes;
        if (copy_row[row] < 0) {
          std::memset(to, 0, bytes);
        } else {
          std::memcpy(to, payload.bytes() + static_cast<size_t>(copy_row[row]) * bytes, bytes);
        }
      }
    });
    order.payloads.push_back(sorted);
  }
  return order;
}

}  // namespace moebius
