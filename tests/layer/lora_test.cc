// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LoRA through the layer: ids travel with their tokens through every backend, and each token gets
// its adapter's experts.  The reference has an adapter merged into its weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "moebius/group.h"
#include "moebius/moe_layer.h"
#include "problems/gemm_tolerance.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

constexpr int64_t kExperts = 6;  // not a multiple of 4 ranks
constexpr int64_t kHidden = 128;
constexpr int64_t kIntermediate = 48;
constexpr int64_t kTopk = 2;
constexpr int64_t kAdapters = 3;
constexpr int64_t kRank = 8;
constexpr int64_t kTokens = 23;

struct Spread {
  std::string name;
  int tp = 1;
  int dp = 1;
  bool use_ep = true;
  All2AllBackend backend = All2AllBackend::kNone;
  bool monolithic = false;
  int ranks_per_node = 0;
  ActivationFormat format = ActivationFormat::kStandard;
  bool last_without_ids = false;  // the last data-parallel rank gives no lora_ids

  int num_ranks() const { return tp * dp; }
};

std::vector<Spread> spreads() {
  std::vector<Spread> all;
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string n = std::to_string(ranks);
    all.push_back({"none_tp" + n, ranks});
    all.push_back(
        {"monolithic_dp" + n, 1, ranks, true, All2AllBackend::kAllGatherReduceScatter, true});
    for (const auto backend : {All2AllBackend::kAllGatherReduceScatter,
                               All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency}) {
      Spread spread{std::string(name(backend)) + "_dp" + n, 1, ranks, true, backend};
      all.push_back(spread);
      if (ranks > 1) {
        spread.last_without_ids = true;
        spread.name += "_last_without_ids";
        all.push_back(spread);
      }
    }
  }
  all.push_back({"none_tp2_no_ep", 2, 1, false});
  Spread batched{"none_batched_tp2", 2};
  batched.format = ActivationFormat::kBatched;
  all.push_back(batched);
  for (const auto backend : {All2AllBackend::kAllGatherReduceScatter,
                             All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency}) {
    const std::string n(name(backend));
    all.push_back({n + "_tp2_dp2", 2, 2, true, backend});
    all.push_back({n + "_nodes_of_2", 1, 4, true, backend, false, 2});
  }
  return all;
}

// Rows [begin, end) of dimension 1 or 2 of `whole`.
Tensor part_of(const Tensor& whole, int dim, int64_t begin, int64_t end) {
  std::vector<int64_t> dims;
  for (int d = 0; d < whole.num_dims(); ++d) {
    dims.push_back(d == dim ? end - begin : whole.dim(d));
  }
  const Tensor part = Tensor::empty(Shape(std::span<const int64_t>(dims)), whole.dtype());
  int64_t outer = 1;
  int64_t inner = bits(whole.dtype()) / 8;
  for (int d = 0; d < whole.num_dims(); ++d) {
    (d < dim ? outer : inner) *= d == dim ? 1 : whole.dim(d);
  }
  for (int64_t o = 0; o < outer; ++o) {
    std::memcpy(part.bytes() + o * (end - begin) * inner,
                whole.bytes() + (o * whole.dim(dim) + begin) * inner,
                static_cast<size_t>((end - begin) * inner));
  }
  return part;
}

// The shard [begin, end) of gate and of up, which lie one after the other in dimension `dim`.
Tensor gate_up_part(const Tensor& whole, int dim, int64_t begin, int64_t end) {
  const Tensor gate = part_of(whole, dim, begin, end);
  const Tensor up = part_of(whole, dim, kIntermediate + begin, kIntermediate + end);
  std::vector<int64_t> dims;
  for (int d = 0; d < gate.num_dims(); ++d) {
    dims.push_back(d == dim ? 2 * gate.dim(d) : gate.dim(d));
  }
  const Tensor both = Tensor::empty(Shape(std::span<const int64_t>(dims)), gate.dtype());
  int64_t outer = 1;
  for (int d = 0; d < dim; ++d) {
    outer *= gate.dim(d);
  }
  const auto block = static_cast<size_t>(gate.nbytes() / outer);
  for (int64_t o = 0; o < outer; ++o) {
    const auto at = static_cast<size_t>(o) * block;
    std::memcpy(both.bytes() + 2 * at, gate.bytes() + at, block);
    std::memcpy(both.bytes() + 2 * at + block, up.bytes() + at, block);
  }
  return both;
}

MoeLayerWeights whole_weights() {
  MoeLayerWeights w;
  w.config.num_experts = w.config.num_local_experts = kExperts;
  w.config.experts_per_token = kTopk;
  w.config.hidden = kHidden;
  w.config.intermediate = kIntermediate;
  w.config.in_dtype = DType::kF32;
  w.config.max_num_tokens = 5;  // several calls of a batched backend
  w.router_config.num_experts = kExperts;
  w.router_config.topk = kTopk;
  w.router_config.renormalize = true;
  w.router.gate = random_tensor({kExperts, kHidden}, DType::kF32, 1, 0.3f);
  w.experts.w1 = random_tensor({kExperts, 2 * kIntermediate, kHidden}, DType::kF32, 2, 0.3f);
  w.experts.w2 = random_tensor({kExperts, kHidden, kIntermediate}, DType::kF32, 3, 0.3f);
  w.shared.w1 = random_tensor({1, 2 * kIntermediate, kHidden}, DType::kF32, 4, 0.3f);
  w.shared.w2 = random_tensor({1, kHidden, kIntermediate}, DType::kF32, 5, 0.3f);
  w.shared_intermediate = kIntermediate;
  LoraWeights& lora = w.experts.lora;
  lora.w1_a = random_tensor({kAdapters, kExperts, 2 * kRank, kHidden}, DType::kF32, 6, 0.2f);
  lora.w1_b = random_tensor({kAdapters, kExperts, 2 * kIntermediate, kRank}, DType::kF32, 7, 0.3f);
  lora.w2_a = random_tensor({kAdapters, kExperts, kRank, kIntermediate}, DType::kF32, 8, 0.2f);
  lora.w2_b = random_tensor({kAdapters, kExperts, kHidden, kRank}, DType::kF32, 9, 0.3f);
  lora.scaling = filled({kAdapters}, DType::kF32, {1.0f, -0.5f, 2.0f});
  return w;
}

// What one rank holds of them.
MoeLayerWeights shard(const ParallelConfig& parallel) {
  MoeLayerWeights w = whole_weights();
  w.config.parallel = parallel;
  LoraWeights& lora = w.experts.lora;
  if (parallel.use_ep) {
    const ExpertRange own = expert_range(kExperts, parallel.ep_size, parallel.ep_rank);
    w.config.num_local_experts = own.size();
    for (Tensor* tensor : {&w.experts.w1, &w.experts.w2}) {
      *tensor = tensor->slice(own.begin, own.end);
    }
    for (Tensor* tensor : {&lora.w1_a, &lora.w1_b, &lora.w2_a, &lora.w2_b}) {
      *tensor = part_of(*tensor, 1, own.begin, own.end);
    }
    return w;
  }
  const int64_t width = kIntermediate / parallel.tp_size;
  const int64_t begin = width * parallel.tp_rank;
  w.experts.w1 = gate_up_part(w.experts.w1, 1, begin, begin + width);
  w.experts.w2 = part_of(w.experts.w2, 2, begin, begin + width);
  lora.w1_b = gate_up_part(lora.w1_b, 2, begin, begin + width);
  lora.w2_a = part_of(lora.w2_a, 3, begin, begin + width);
  return w;
}

// W + scaling * B * A of every expert: the layer in which all tokens have this adapter.
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

Tensor run_alone(MoeLayerWeights weights, const Tensor& ids, const MoeLayerOptions& options = {}) {
  const Stream stream = Stream::cpu(1);
  MoeLayer layer(std::move(weights), options, stream);
  WorkspacePool pool;
  const Tensor output = Tensor::empty({kTokens, kHidden}, DType::kF32);
  layer.forward(hidden_states(), output, {stream, &pool, 0, nullptr}, ids);
  return output;
}

double bound() {
  // Sums over experts and ranks in other orders, and weights rounded once more.
  return 4 * tolerance(DType::kF32, std::nullopt, kHidden);
}

// Outputs of the layers with adapter 0, 1, .. merged for all tokens, and of the one without.
const std::vector<Tensor>& merged_outputs() {
  static const std::vector<Tensor> outputs = [] {
    std::vector<Tensor> all;
    for (int64_t adapter = 0; adapter < kAdapters; ++adapter) {
      all.push_back(run_alone(merged_weights(adapter), {}));
    }
    all.push_back(run_alone(whole_weights(), {}));
    return all;
  }();
  return outputs;
}

// Every token against the layer whose weights have its adapter merged.
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
      expect_adapters_applied(run_alone(whole_weights(), ids, options), ids);
    }
  }
  MoeLayerOptions oracle;
  oracle.precision = Precision::kF64;
  expect_adapters_applied(run_alone(whole_weights(), ids, oracle), ids);
}

TEST(Lora, WithoutIdsTheLayerIsTheBase) {
  MoeLayerWeights base = whole_weights();
  base.experts.lora = {};
  const Tensor none = Tensor::empty({kTokens}, DType::kI32);
  std::fill_n(none.data<int32_t>(), kTokens, -1);
  const Tensor expected = run_alone(base, {});
  expect_same_bits(run_alone(whole_weights(), {}), expected);
  expect_same_bits(run_alone(whole_weights(), none), expected);
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
  const Tensor output = Tensor::empty(hidden.shape(), DType::kF32);
  poison(output);
  ThreadGroupOptions options;
  options.num_ranks = spread.num_ranks();
  options.ranks_per_node = spread.ranks_per_node;
  run_thread_ranks(options, [&](Group& group) {
    const int dp_rank = group.rank() / spread.tp;
    const auto parallel = ParallelConfig::make(spread.tp, group.rank() % spread.tp, spread.dp,
                                               dp_rank, spread.use_ep, spread.backend);
    MoeLayerOptions layer_options;
    layer_options.monolithic = spread.monolithic;
    layer_options.format = spread.format;
    const Stream stream = Stream::cpu(1);
    MoeLayer layer(shard(parallel), layer_options, stream, &group);
    WorkspacePool pool;
    const auto [begin, end] = tokens_of(spread.dp, dp_rank);
    const Tensor own = Tensor::empty({end - begin, kHidden}, DType::kF32);
    const bool gives_ids = !spread.last_without_ids || dp_rank < spread.dp - 1;
    for (int call = 0; call < 2; ++call) {  // the second finds the state of the first
      layer.forward(hidden.slice(begin, end), own, {stream, &pool, 0, nullptr},
                    gives_ids ? ids.slice(begin, end) : Tensor());
    }
    if (group.rank() % spread.tp == 0 && end > begin) {
      std::memcpy(output.slice(begin, end).raw(), own.raw(), static_cast<size_t>(own.nbytes()));
    }
  });
  expect_adapters_applied(output, ids);
  const Tensor alone = run_alone(whole_weights(), ids);
  for (int64_t t = 0; t < kTokens; ++t) {
    EXPECT_LE(relative_error(output[t], alone[t]), bound()) << "row " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Spreads,
                         LoraParallelTest,
                         ::testing::ValuesIn(spreads()),
                         [](const auto& test) { return test.param.name; });

TEST(LoraErrors, AreSaidBeforeAnythingRuns) {
  const auto forward = [](const MoeLayerWeights& weights, const Tensor& ids) {
    return message_of<Error>([&] { run_alone(weights, ids); });
  };
  Tensor ids = lora_ids();
  EXPECT_EQ(forward(whole_weights(), ids), "no error");
  expect_mentions(forward(whole_weights(), ids.slice(0, 5)), {"lora_ids", "[5]", "[23]"});
  expect_mentions(forward(whole_weights(), Tensor::zeros({kTokens}, DType::kI64)),
                  {"lora_ids", "i64", "i32"});
  ids.data<int32_t>()[4] = 3;
  expect_mentions(forward(whole_weights(), ids), {"lora_ids[4]", "3", "-1 to 2"});
  MoeLayerWeights base = whole_weights();
  base.experts.lora = {};
  expect_mentions(forward(base, lora_ids()), {"lora_ids", "no adapters"});
  MoeLayerWeights shared = whole_weights();
  shared.shared.lora = shared.experts.lora;
  expect_mentions(forward(shared, {}), {"num_adapters is 0", "3"});
}

// Pieces of 5 tokens before it would have run.
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
    layer.forward(hidden_states(), output, {stream, &pool, 0, nullptr}, ids);
  });
  expect_same_bits(output, Tensor::zeros({kTokens, kHidden}, DType::kF32));
}

// The first rank's slice has none of it.
TEST(LoraErrors, OfTokensOfATpGroupAreMetByEveryRank) {
  const Tensor ids = lora_ids();
  ids.data<int32_t>()[20] = 3;
  ThreadGroupOptions group_options;
  group_options.num_ranks = 2;
  run_thread_ranks(group_options, [&](Group& group) {
    const auto parallel =
        ParallelConfig::make(2, group.rank(), 1, 0, true, All2AllBackend::kLowLatency);
    const Stream stream = Stream::cpu(1);
    MoeLayer layer(shard(parallel), {}, stream, &group);
    WorkspacePool pool;
    const Tensor output = Tensor::empty({kTokens, kHidden}, DType::kF32);
    const CallContext context{stream, &pool, 0, nullptr};
    const auto forward = [&](const Tensor& some) {
      return message_of<Error>([&] { layer.forward(hidden_states(), output, context, some); });
    };
    expect_mentions(forward(ids), {"lora_ids[20] is 3", "-1 to 2"});
    EXPECT_EQ(forward(lora_ids()), "no error");
  });
}

}  // namespace
}  // namespace moebius::testing
