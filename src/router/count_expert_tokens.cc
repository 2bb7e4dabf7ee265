// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/ids.h"
#include "core/overlap.h"
#include "core/same_device.h"
#include "moebius/router.h"
#include "router/checks.h"
#include "router/cuda/count.h"

namespace moebius {

void count_expert_tokens(const Tensor& ids,
                         const Tensor& expert_map,
                         const Tensor& out,
                         const Stream& stream) {
  expect_id_dtype(ids, "ids");
  const Device device = ids.device();
  expect_eq(ids.num_dims(), 2, "dimensions of ids");
  expect_dtype(out, DType::kI32, "out");
  expect_on(out, device, "out");
  expect_writable(out, "out");
  expect_eq(out.num_dims(), 1, "dimensions of out");
  // Counts that are read as ids would be places to count at.
  expect_apart(out, ids, "out", "ids");
  expect_apart(out, expert_map, "out", "expert_map");
  const int64_t num_local_experts = out.dim(0);
  if (expert_map) {
    expect_dtype(expert_map, DType::kI32, "expert_map");
    expect_on(expert_map, device, "expert_map");
    expect_eq(expert_map.num_dims(), 1, "dimensions of expert_map");
  }
  expect_stream(stream, device);
  if (device.is_cuda()) {
    router::cuda_count_expert_tokens(ids, expert_map, out, stream);
    return;
  }
  if (expert_map) {
    router::expect_ids_below(expert_map, num_local_experts, "expert_map");
  }
  router::expect_ids_below(ids, expert_map ? expert_map.dim(0) : num_local_experts, "ids");

  const int32_t* map = expert_map ? expert_map.data<int32_t>() : nullptr;
  int32_t* counts = out.data<int32_t>();
  std::fill_n(counts, num_local_experts, 0);
  const Ids id = Ids::of(ids);
  const int64_t num_ids = ids.numel();
  for (int64_t i = 0; i < num_ids; ++i) {
    const int32_t local = id[i] < 0 || map == nullptr ? id[i] : map[id[i]];
    if (local >= 0) {
      ++counts[local];
    }
  }
}

}  // namespace moebius
