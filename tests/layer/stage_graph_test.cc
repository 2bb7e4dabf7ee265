// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The stages around the experts inside a CUDA graph: a replay works on the current operands.
#include <functional>
#include <string>
#include <vector>

#include "moebius/graph.h"
#include "moebius/permute.h"
#include "moebius/quantize.h"
#include "moebius/router.h"
#include "moebius/weight_and_reduce.h"
#include "problems/place.h"
#include "problems/routers.h"
#include "tests/layer/tensors.h"
#include "tests/on_devices.h"

namespace moebius::testing {
namespace {

constexpr int64_t kTokens = 600;  // more slots than one chunk of a permutation
constexpr int64_t kHidden = 512;
constexpr int64_t kExperts = 64;
constexpr int64_t kTopk = 6;

class StageGraph : public OnGpu {
 protected:
  // Captures `work`, which must not run meanwhile.  Then, for each of two seeds, calls `fill`,
  // replays the graph and calls `check`.  `work` runs once before, since a first call may load
  // kernels.
  void replay(const std::function<void()>& work,
              const std::function<void(int64_t seed)>& fill,
              const std::function<void()>& check) {
    fill(1);
    work();
    place_.stream.synchronize();
    const Graph graph(place_.stream, work);
    for (const int64_t seed : {2, 3}) {
      SCOPED_TRACE("replay with seed " + std::to_string(seed));
      fill(seed);
      graph.launch();
      place_.stream.synchronize();
      check();
    }
  }

  Tensor there(const Shape& shape, DType dtype) const {
    return Tensor::zeros(shape, dtype, place_.device());
  }
  // Copies `from` to `to` on the GPU, and returns `from`.
  Tensor put(const Tensor& from, const Tensor& to) const {
    copy(from, to, place_.stream);
    place_.stream.synchronize();
    return from;
  }
};

TEST_F(StageGraph, QuantizesWhatIsThere) {
  for (const GroupShape group :
       {GroupShape{1, 128}, GroupShape::per_token(), GroupShape::per_tensor()}) {
    QuantizeSpec spec;
    spec.group = group;
    const Tensor x = there({kTokens, kHidden}, DType::kBF16);
    const Tensor dequantized = there({kTokens, kHidden}, DType::kBF16);
    Quantized q = allocate_quantized(spec, kTokens, kHidden, place_.device());
    Tensor given;
    replay(
        [&] {
          quantize(x, spec, q, place_.stream);
          quantize_dequantize(x, spec, dequantized, place_.stream);
        },
        [&](int64_t seed) {
          given = put(random_tensor({kTokens, kHidden}, DType::kBF16, seed), x);
        },
        [&] {
          const Quantized expected = quantize(given, spec);
          expect_same_bits(place_.bring(q.values), expected.values);
          expect_same_bits(place_.bring(q.scale), expected.scale);
          const Tensor out = Tensor::empty(given.shape(), given.dtype());
          dequantize(expected, spec, out, Stream{});
          expect_same_bits(place_.bring(dequantized), out);
        });
  }
}

TEST_F(StageGraph, PermutesCountsAndReducesWhatIsThere) {
  const Tensor x = there({kTokens, kHidden}, DType::kBF16);
  const Tensor ids = there({kTokens, kTopk}, DType::kI32);
  const Tensor weights = there({kTokens, kTopk}, DType::kF32);
  const Tensor rows = there({kTokens * kTopk, kHidden}, DType::kBF16);
  const Tensor sums = there({kTokens, kHidden}, DType::kBF16);
  const Tensor counts = there({kExperts}, DType::kI32);
  const Permutation order = allocate_permutation(kTokens, kTopk, kExperts, place_.device());
  Tensor x_given, ids_given, weights_given;
  replay(
      [&] {
        count_expert_tokens(ids, {}, counts, place_.stream);
        make_permutation(ids, {}, order, place_.stream);
        permute_rows(x, order, rows, place_.stream);
        reduce_permuted_rows(rows, order.row_of_slot, weights, sums, place_.stream);
      },
      [&](int64_t seed) {
        x_given = put(random_tensor({kTokens, kHidden}, DType::kBF16, seed), x);
        ids_given = put(random_ids(kTokens, kTopk, kExperts, seed), ids);
        weights_given = put(random_tensor({kTokens, kTopk}, DType::kF32, seed + 10), weights);
      },
      [&] {
        const Permutation expected = allocate_permutation(kTokens, kTopk, kExperts);
        make_permutation(ids_given, {}, expected, Stream{});
        const Tensor expected_counts = Tensor::empty({kExperts}, DType::kI32);
        count_expert_tokens(ids_given, {}, expected_counts, Stream{});
        const Tensor expected_rows = Tensor::empty(rows.shape(), DType::kBF16);
        permute_rows(x_given, expected, expected_rows, Stream{});
        const Tensor expected_sums = Tensor::empty(sums.shape(), DType::kBF16);
        reduce_permuted_rows(expected_rows, expected.row_of_slot, weights_given, expected_sums,
                             Stream{});
        expect_same_bits(place_.bring(counts), expected_counts);
        expect_same_bits(place_.bring(order.slot_of_row), expected.slot_of_row);
        expect_same_bits(place_.bring(order.expert_offsets), expected.expert_offsets);
        expect_same_bits(place_.bring(rows), expected_rows);
        expect_same_bits(place_.bring(sums), expected_sums);
      });
}

TEST_F(StageGraph, RoutesWhatIsThere) {
  RouterConfig config = deepseek_v3_router(kExperts, kTopk);
  RouterWeights router_weights;
  router_weights.gate = random_tensor({kExperts, kHidden}, DType::kBF16, 4, 0.1f);
  const Router on_cpu(config, router_weights);
  config.device = place_.device();
  const Router router(config, router_weights);
  const Tensor x = there({kTokens, kHidden}, DType::kBF16);
  const Tensor logits = there({kTokens, kExperts}, DType::kF32);
  const Tensor ids = there({kTokens, kTopk}, DType::kI32);
  const Tensor weights = there({kTokens, kTopk}, DType::kF32);
  Tensor given;
  replay(
      [&] {
        router.logits(x, logits, place_.stream);
        router.select(logits, ids, weights, place_.stream);
      },
      [&](int64_t seed) {
        given = put(random_tensor({kTokens, kHidden}, DType::kBF16, seed), x);
      },
      [&] {
        const Tensor expected_logits = Tensor::empty(logits.shape(), DType::kF32);
        const Tensor expected_ids = Tensor::empty(ids.shape(), DType::kI32);
        const Tensor expected_weights = Tensor::empty(weights.shape(), DType::kF32);
        on_cpu.logits(given, expected_logits, Stream{});
        on_cpu.select(expected_logits, expected_ids, expected_weights, Stream{});
        expect_same_bits(place_.bring(logits), expected_logits);
        expect_same_bits(place_.bring(ids), expected_ids);
        expect_same_bits(place_.bring(weights), expected_weights);
      });
}

}  // namespace
}  // namespace moebius::testing
