// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LoRA in the layer: ids travel with their tokens through every backend, and the experts apply each
// token's adapter.  The reference is a layer with the adapter merged into its weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "problems/gemm_tolerance.h"
#include "tests/by_name.h"
#include "tests/layer/backends.h"
#include "tests/layer/small_layer.h"
#include "tests/layer/spread.h"

namespace moebius::testing {
namespace {

constexpr int64_t kExperts = SmallLayer::kExperts;
constexpr int64_t kHidden = SmallLayer::kHidden;
constexpr int64_t kIntermediate = SmallLayer::kIntermediate;
constexpr int64_t kAdapters = 3;
constexpr int64_t kRank = 8;
constexpr int64_t kTokens = 23;

std::vector<Spread> spreads() {
  std::vector<Spread> all;
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string n = std::to_string(ranks);
    all.push_back({.name = "none_tp" + n, .tp = ranks});
    all.push_back({.name = "monolithic_dp" + n,
                   .dp = ranks,
                   .backend = All2AllBackend::kAllGatherReduceScatter,
                   .monolithic = true});
    for (const auto backend : kBackends) {
      Spread spread{
          .name = std::string(name(backend)) + "_dp" + n, .dp = ranks, .backend = backend};
      all.push_back(spread);
      if (ranks > 1) {
        spread.last_without_ids = true;
        spread.name += "_last_without_ids";
        all.push_back(spread);
      }
    }
  }
  all.push_back({.name = "none_tp2_no_ep", .tp = 2, .use_ep = false});
  all.push_back({.name = "none_batched_tp2", .tp = 2, .format = ActivationFormat::kBatched});
  for (const auto backend : kBackends) {
    const std::string n(name(backend));
    all.push_back({.name = n + "_tp2_dp2", .tp = 2, .dp = 2, .backend = backend});
    all.push_back({.name = n + "_nodes_of_2", .dp = 4, .backend = backend, .ranks_per_node = 2});
  }
  return all;
}

// The given ranges of dimension `dim` of `whole`, one after the other.
Tensor parts_of(const Tensor& whole, int dim, std::initializer_list<ExpertRange> ranges) {
  int64_t outer = 1;
  int64_t inner = bits(whole.dtype()) / 8;
  std::vector<int64_t> dims;
  for (int d = 0; d < whole.num_dims(); ++d) {
    dims.push_back(whole.dim(d));
    (d < dim ? outer : inner) *= d == dim ? 1 : whole.dim(d);
  }
  int64_t& length = dims[static_cast<size_t>(dim)] = 0;
  for (const ExpertRange& range : ranges) {
    length += range.size();
  }
  const Tensor parts = Tensor::empty(Shape(std::span<const int64_t>(dims)), whole.dtype());
  std::byte* to = parts.bytes();
  for (int64_t o = 0; o < outer; ++o) {
    for (const ExpertRange& range : ranges) {
      const int64_t nbytes = range.size() * inner;
      std::memcpy(to, whole.bytes() + (o * whole.dim(dim) + range.begin) * inner,
                  static_cast<size_t>(nbytes));
      to += nbytes;
    }
  }
  return parts;
}

MoeLayerWeights whole_weights() {
  MoeLayerWeights w = SmallLayer::whole();
  w.config.max_num_tokens = 5;  // so that a batched backend takes several calls
  LoraWeights& lora = w.experts.lora;
  lora.w1_a = random_tensor({kAdapters, kExperts, 2 * kRank, kHidden}, DType::kF32, 6, 0.2f);
  lora.w1_b = random_tensor({kAdapters, kExperts, 2 * kIntermediate, kRank}, DType::kF32, 7, 0.3f);
  lora.w2_a = random_tensor({kAdapters, kExperts, kRank, kIntermediate}, DType::kF32, 8, 0.2f);
  lora.w2_b = random_tensor({kAdapters, kExperts, kHidden, kRank}, DType::kF32, 9, 0.3f);
  lora.scaling = filled({kAdapters}, DType::kF32, {1.0f, -0.5f, 2.0f});
  return w;
}

// The share of one rank.
MoeLayerWeights shard(const ParallelConfig& parallel) {
  MoeLayerWeights w = whole_weights();
  LoraWeights& lora = w.experts.lora;
  if (parallel.use_ep) {
    const ExpertRange own = expert_range(kExperts, parallel.ep_size, parallel.ep_rank);
    for (Tensor* tensor : {&lora.w1_a, &lora.w1_b, &lora.w2_a, &lora.w2_b}) {
      *tensor = parts_of(*tensor, 1, {own});
    }
    return share_of(std::move(w), parallel);
  }
  w.config.parallel = parallel;
  const int64_t width = kIntermediate / parallel.tp_size;
  const ExpertRange gate{width * parallel.tp_rank, width * (parallel.tp_rank + 1)};
  const ExpertRange up{kIntermediate + gate.begin, kIntermediate + gate.end};
  w.experts.w1 = parts_of(w.experts.w1, 1, {gate, up});
  w.experts.w2 = parts_of(w.experts.w2, 2, {gate});
  lora.w1_b = parts_of(lora.w1_b, 2, {gate, up});
  lora.w2_a = parts_of(lora.w2_a, 3, {gate});
  return w;
}

// Weights W + scaling * B * A of every expert: with them all tokens have this adapter.
MoeLayerWeights merged_weights(int64_t adapter) {
  MoeLayerWeights w = whole_weights();
  const LoraWeights lora = std::exchange(w.experts.lora, {});
  const double scaling = static_cast<double>(get_float(lora.scaling, adapter));
  const auto merge = [&](const Tensor& weight, const Tensor& a, const Tensor& b, int64_t half) {
    const int64_t rows = weight.dim(1);
    const int64_t cols = weight.dim(2);
    for (int64_t row = 0; row < kExperts * rows; ++row) {
      const int64_t e = row / rows;
      const int64_t a_row = e * a.dim(2) + row % rows / half * kRank;
      const float* b_values = b[adapter].data<float>() + row * kRank;
      const float* a_values = a[adapter].data<float>() + a_row * cols;
      for (int64_t k = 0; k < cols; ++k) {
        double sum = 0;
        for (int64_t j = 0; j < kRank; ++j) {
          sum += static_cast<double>(b_values[j]) * static_cast<double>(a_values[j * cols + k]);
        }
        float& value = weight.data<float>()[row * cols + k];
        value = static_cast<float>(static_cast<double>(value) + scaling * sum);
      }
    }
  };
  merge(w.experts.w1, lora.w1_a, lora.w1_b, kIntermediate);
  merge(w.experts.w2, lora.w2_a, lora.w2_b, kHidden);
  return w;
}

Tensor hidden_states() {
  return random_tensor({kTokens, kHidden}, DType::kF32, 20);
}

Tensor lora_ids() {
  const Tensor ids = Tensor::empty({kTokens}, DType::kI32);
  for (int32_t t = 0; t < kTokens; ++t) {
    ids.data<int32_t>()[t] = t * 7 % 5 % (kAdapters + 1) - 1;  // -1 to 2, mixed
  }
  return ids;
}

// Tokens of a data-parallel rank: most to the first, none to the second.
std::pair<int64_t, int64_t> tokens_of(int dp, int dp_rank) {
  const int64_t counts[] = {11, 0, 5, 7};
  const auto share = [&](int rank) {
    return dp == 1   ? kTokens
           : dp == 2 ? (rank == 0 ? kTokens : 0)
           : dp == 3 ? counts[rank] + (rank == 2 ? 7 : 0)
                     : counts[rank];
  };
  int64_t begin = 0;
  for (int rank = 0; rank < dp_rank; ++rank) {
    begin += share(rank);
  }
  return {begin, begin + share(dp_rank)};
}

Tensor run_tokens(MoeLayerWeights weights, const Tensor& ids, const MoeLayerOptions& options = {}) {
  return run_alone(std::move(weights), options, hidden_states(), ids);
}

double bound() {
  // Sums over experts and ranks have other orders, and merged weights are rounded once more.
  return 4 * tolerance(DType::kF32, std::nullopt, kHidden);
}

// The outputs of layers with adapter 0, 1, and so on merged for all tokens, and of one without.
const std::vector<Tensor>& merged_outputs() {
  static const std::vector<Tensor> outputs = [] {
    std::vector<Tensor> all;
    for (int64_t adapter = 0; adapter < kAdapters; ++adapter) {
      all.push_back(run_tokens(merged_weights(adapter), {}));
    }
    all.push_back(run_tokens(whole_weights(), {}));
    return all;
  }();
  return outputs;
}

// Compares every token with the layer whose weights have its adapter merged.
void expect_adapters_applied(const Tensor& output, const Tensor& ids) {
  const std::vector<Tensor>& expected = merged_outputs();
  for (int64_t t = 0; t < kTokens; ++t) {
    const int32_t id = ids.data<int32_t>()[t];
    const Tensor& reference = expected[static_cast<size_t>(id < 0 ? kAdapters : id)];
    EXPECT_LE(relative_error(output[t], reference[t]), bound()) << "token " << t << " id " << id;
  }
}

TEST(Lora, TokensGetTheirAdapters) {
  const Tensor ids = lora_ids();
  for (const auto format : {ActivationFormat::kStandard, ActivationFormat::kBatched}) {
    for (const int64_t chunk_tokens : {0, 6}) {
      SCOPED_TRACE(std::string(name(format)) + " chunks of " + std::to_string(chunk_tokens));
      MoeLayerOptions options;
      options.format = format;
      options.kernel.chunk_tokens = chunk_tokens;
      expect_adapters_applied(run_tokens(whole_weights(), ids, options), ids);
    }
  }
  MoeLayerOptions oracle;
  oracle.precision = Precision::kF64;
  expect_adapters_applied(run_tokens(whole_weights(), ids, oracle), ids);
}

TEST(Lora, WithoutIdsTheLayerIsTheBase) {
  MoeLayerWeights base = whole_weights();
  base.experts.lora = {};
  const Tensor none = ids_of({kTokens}, std::vector<int32_t>(kTokens, -1));
  const Tensor expected = run_tokens(base, {});
  expect_same_bits(run_tokens(whole_weights(), {}), expected);
  expect_same_bits(run_tokens(whole_weights(), none), expected);
}

class LoraParallelTest : public ::testing::TestWithParam<Spread> {};

TEST_P(LoraParallelTest, RowsAreThoseOfOneRank) {
  const Spread& spread = GetParam();
  const Tensor hidden = hidden_states();
  const Tensor ids = lora_ids();
  const auto [last_begin, last_end] = tokens_of(spread.dp, spread.dp - 1);
  if (spread.last_without_ids) {
    std::fill(ids.data<int32_t>() + last_begin, ids.data<int32_t>() + last_end, -1);
  }
  const auto tokens_of_rank = [&](int rank) {
    const int dp_rank = rank / spread.tp;
    const auto [begin, end] = tokens_of(spread.dp, dp_rank);
    const bool gives_ids = !spread.last_without_ids || dp_rank < spread.dp - 1;
    return RankTokens{hidden.slice(begin, end), gives_ids ? ids.slice(begin, end) : Tensor()};
  };
  const Tensor output =
      joined_rows(spread, run_spread(spread, spread.options(), shard, tokens_of_rank), kTokens);
  expect_adapters_applied(output, ids);
  expect_near_rows(output, run_tokens(whole_weights(), ids), bound());
}

INSTANTIATE_TEST_SUITE_P(Spreads, LoraParallelTest, ::testing::ValuesIn(spreads()), by_name);

TEST(LoraErrors, AreSaidBeforeAnythingRuns) {
  const auto expect_refusal = [](Parts parts, const MoeLayerWeights& weights, const Tensor& ids) {
    expect_error(parts, [&] { run_tokens(weights, ids); });
  };
  Tensor ids = lora_ids();
  expect_refusal({"no error"}, whole_weights(), ids);
  expect_refusal({"lora_ids", "[5]", "[23]"}, whole_weights(), ids.slice(0, 5));
  expect_refusal({"lora_ids", "i64", "i32"}, whole_weights(),
                 Tensor::zeros({kTokens}, DType::kI64));
  ids.data<int32_t>()[4] = 3;
  expect_refusal({"lora_ids[4]", "3", "-1 to 2"}, whole_weights(), ids);
  MoeLayerWeights base = whole_weights();
  base.experts.lora = {};
  expect_refusal({"lora_ids", "no adapters"}, base, lora_ids());
  MoeLayerWeights shared = whole_weights();
  shared.shared.lora = shared.experts.lora;
  expect_refusal({"num_adapters is 0", "3"}, shared, {});
}

// The layer takes pieces of 5 tokens, and those before the bad id must not run.
TEST(LoraErrors, OfALaterPieceAreNamedByTheCallersToken) {
  const Tensor ids = lora_ids();
  ids.data<int32_t>()[22] = 3;
  MoeLayerOptions options;
  options.format = ActivationFormat::kBatched;
  const Stream stream = Stream::cpu(1);
  MoeLayer layer(whole_weights(), options, stream);
  WorkspacePool pool;
  const Tensor output = Tensor::zeros({kTokens, kHidden}, DType::kF32);
  expect_error({"lora_ids[22] is 3", "-1 to 2"}, [&] {
    layer.forward({.hidden = hidden_states(), .lora_ids = ids}, output, {stream, &pool});
  });
  expect_same_bits(output, Tensor::zeros({kTokens, kHidden}, DType::kF32));
}

// The bad id is not in the first rank's slice, and yet that rank throws, too.
TEST(LoraErrors, OfTokensOfATpGroupAreMetByEveryRank) {
  const Tensor ids = lora_ids();
  ids.data<int32_t>()[20] = 3;
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    const auto parallel =
        ParallelConfig::make(2, group.rank(), 1, 0, true, All2AllBackend::kLowLatency);
    const Stream stream = Stream::cpu(1);
    MoeLayer layer(shard(parallel), {}, stream, &group);
    expect_error({"lora_ids[20] is 3", "-1 to 2"},
                 [&] { forward(layer, hidden_states(), DType::kF32, stream, ids); });
    forward(layer, hidden_states(), DType::kF32, stream, lora_ids());
  });
}

}  // namespace
}  // namespace moebius::testing
