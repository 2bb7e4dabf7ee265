// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatches on GPUs that write into tensors of the caller's, with and without a capacity.
#include <gtest/gtest.h>

#include <algorithm>

#include "moebius/graph.h"
#include "tests/comm/cuda/sides.h"

namespace moebius::testing {
namespace {

using IntoCuda = HighThroughputCuda;

DispatchInto make_room(const DispatchInput& like, int64_t rows, Device device) {
  DispatchInto into;
  for (const Tensor& payload : like.payloads) {
    into.payloads.push_back(Tensor::zeros({rows, payload.dim(1)}, payload.dtype(), device));
  }
  into.topk_ids = Tensor::zeros({rows, like.topk_ids.dim(1)}, like.topk_ids.dtype(), device);
  into.topk_weights = Tensor::zeros({rows, like.topk_ids.dim(1)}, DType::kF32, device);
  return into;
}

TEST_P(IntoCuda, RowsAreInTheCallersTensors) {
  run_problems([&](const DispatchProblem& p, Sides& sides, Group& host) {
    const RankInput in = make_input(p, host.rank());
    const DispatchInput request{{in.x, in.code}, in.ids, in.weights, 8, {}};
    const DispatchOutput expected = sides.cpu.dispatch(request, sides.cpu_stream);
    const int64_t most = expected.handle->most_rows();
    DispatchInput request_up = sides.up(request);
    request_up.into = make_room(request_up, most + 2, sides.device);
    for (int call = 0; call < 3; ++call) {
      const DispatchOutput output = sides.cuda.dispatch(request_up, sides.stream);
      expect_same(sides, output, expected);
      EXPECT_EQ(output.payloads[0].raw(), request_up.into.payloads[0].raw());
    }
    request_up.into = {};
    const DispatchOutput sent = sides.cuda.dispatch(request_up, sides.stream);
    for (const int64_t room : {most + 2, most - 1}) {
      CachedDispatchInput along{request_up.payloads, {}, {}};
      along.into = make_room(request_up, std::max<int64_t>(room, 0), sides.device).payloads;
      if (room < most && most > 0) {
        EXPECT_THROW(sides.cuda.dispatch_cached(along, *sent.handle, sides.stream),
                     InvalidArgument);
        continue;
      }
      const DispatchOutput again = sides.cuda.dispatch_cached(along, *sent.handle, sides.stream);
      for (size_t i = 0; i < again.payloads.size(); ++i) {
        EXPECT_EQ(again.payloads[i].raw(), along.into[i].raw());
        expect_same(sides, again.payloads[i], expected.payloads[i], "cached payload");
      }
    }
    request_up.into = make_room(request_up, most + 2, sides.device);
    if (is_one_node()) {
      request_up.capacity = most + 1;
      const DispatchOutput output = sides.cuda.dispatch(request_up, sides.stream);
      EXPECT_EQ(output.payloads[0].raw(), request_up.into.payloads[0].raw());
      const int64_t rows = expected.handle->num_rows();
      expect_same(sides, output.payloads[0].slice(0, rows), expected.payloads[0], "payload 0");
      expect_same(sides, output.topk_ids.slice(0, rows), expected.topk_ids, "topk_ids");
    }
    if (most > 0) {
      request_up.capacity = 0;
      request_up.into = make_room(request_up, most - 1, sides.device);
      EXPECT_THROW(sides.cuda.dispatch(request_up, sides.stream), InvalidArgument);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, IntoCuda, on_gpu_ranks_and_nodes(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
