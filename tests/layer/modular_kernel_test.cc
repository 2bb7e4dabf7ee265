// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The modular kernel with recording parts: which parts it calls, with what and in which order.
#include "moebius/modular_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/layer/fakes.h"

namespace moebius::testing {
namespace {

constexpr int64_t kExperts = 6;
constexpr int64_t kHidden = 8;

std::unique_ptr<PrepareFinalize> fake_pf(FakePrepareFinalize::Options options) {
  return std::make_unique<FakePrepareFinalize>(std::move(options));
}

// A kernel of fakes and an input for it.  The kernel owns the experts.
struct Bench {
  std::unique_ptr<ModularKernel> kernel;
  const FakeExperts* experts = nullptr;
  WorkspacePool pool;
  CallContext context;
  KernelInput input;

  Bench(std::unique_ptr<PrepareFinalize> pf,
        ExpertsDesc desc,
        FakeExperts::Options options = {},
        KernelOptions kernel_options = {},
        std::shared_ptr<const SharedExperts> shared = nullptr,
        std::shared_ptr<const Router> router = nullptr) {
    auto fake = std::make_unique<FakeExperts>(desc, std::move(options));
    experts = fake.get();
    kernel = std::make_unique<ModularKernel>(std::move(pf), std::move(fake), std::move(shared),
                                             std::move(router), kernel_options);
    context.workspaces = &pool;
    input.num_experts = desc.num_experts;
  }
  // Uses a single-rank backend.  The batched one has room for max_tokens rows of each expert.
  Bench(bool is_batched, int64_t max_tokens, ExpertsDesc desc, KernelOptions kernel_options = {})
      : Bench(is_batched ? make_no_ep_batched(max_tokens, desc.num_local_experts) : make_no_ep(),
              with_format(desc, is_batched),
              {},
              kernel_options) {}
  // Results of 5 tokens return in parts.  There are `combine_parts` of them where that is possible.
  Bench(FakePrepareFinalize::Options pf, int64_t hidden, int combine_parts)
      : Bench(fake_pf(with_most_rows(std::move(pf))),
              fake_desc(kExperts, 2, hidden),
              {.kind = WeightAndReduceKind::kNoOp, .gives_parts = true},
              {.combine_parts = combine_parts}) {
    set_tokens(5);
  }

  void set_tokens(int64_t num_tokens) { input = random_input(experts->desc(), num_tokens); }
  Tensor forward() {
    const Tensor output = Tensor::empty(input.hidden.shape(), input.hidden.dtype());
    poison(output);
    kernel->forward(input, output, {}, context);
    return output;
  }

 private:
  static ExpertsDesc with_format(ExpertsDesc desc, bool is_batched) {
    desc.format = is_batched ? ActivationFormat::kBatched : ActivationFormat::kStandard;
    return desc;
  }
  static FakePrepareFinalize::Options with_most_rows(FakePrepareFinalize::Options options) {
    options.most_rows = 5;
    return options;
  }
};

Tensor expected_sum(const KernelInput& input) {
  const int64_t topk = input.topk_ids.dim(1);
  const Tensor output = Tensor::zeros(input.hidden.shape(), DType::kF32);
  for (int64_t i = 0; i < input.topk_ids.numel(); ++i) {
    const int32_t id = input.topk_ids.data<int32_t>()[i];
    for (int64_t h = 0; id >= 0 && h < input.hidden.dim(1); ++h) {
      const int64_t at = i / topk * input.hidden.dim(1) + h;
      output.data<float>()[at] += get_float(input.hidden, at) * static_cast<float>(id + 1) *
                                  get_float(input.topk_weights, i);
    }
  }
  return output;
}

TEST(ModularKernel, SumsWeightedExperts) {
  for (const int64_t topk : {1, 2, 5}) {
    for (const bool is_batched : {false, true}) {
      ExpertsDesc desc = fake_desc(kExperts, topk, kHidden);
      desc.intermediate =
          topk == 5 ? 64 : 1;  // GEMM2's operand is larger than its output, or smaller
      Bench bench(is_batched, 7, desc);
      bench.set_tokens(7);
      EXPECT_LT(relative_error(bench.forward(), expected_sum(bench.input)), 1e-6);
      EXPECT_EQ(bench.experts->calls.size(), 1u);
    }
  }
}

TEST(ModularKernel, MaskedSelectionsCountForNothing) {
  for (const bool is_batched : {false, true}) {
    Bench bench(is_batched, 3, fake_desc(kExperts, 2, kHidden));
    bench.set_tokens(3);
    bench.input.topk_ids = ids_of({3, 2}, {-1, 2, 0, 5, -1, -1});
    EXPECT_LT(relative_error(bench.forward(), expected_sum(bench.input)), 1e-6);
    EXPECT_EQ(ints(bench.kernel->last_expert_load()), (std::vector<int32_t>{1, 0, 1, 0, 0, 1}));
  }
}

TEST(ModularKernel, ChunksGiveTheSameBits) {
  for (const bool flat : {false, true}) {
    for (const int64_t num_tokens : {5, 6, 7, 12, 13}) {
      const ExpertsDesc desc =
          fake_desc(kExperts, 3, kHidden, ActivationFormat::kStandard, DType::kBF16);
      const FakeExperts::Options options{.flat_output = flat};
      Bench whole(make_no_ep(), desc, options);
      Bench chunked(make_no_ep(), desc, options, {.chunk_tokens = 6});
      whole.set_tokens(num_tokens);
      chunked.set_tokens(num_tokens);
      expect_same_bits(chunked.forward(), whole.forward());
      EXPECT_EQ(whole.experts->calls.size(), 1u);
      EXPECT_EQ(static_cast<int64_t>(chunked.experts->calls.size()), (num_tokens + 5) / 6);
    }
  }
}

TEST(ModularKernel, ChunkWorkspacesFitTheChunk) {
  Bench bench(make_no_ep(), fake_desc(kExperts, 2, kHidden), {}, {.chunk_tokens = 4});
  bench.set_tokens(9);
  bench.forward();
  const auto& calls = bench.experts->calls;
  ASSERT_EQ(calls.size(), 3u);
  const int64_t rows[] = {4, 4, 1};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(calls[i].rows, rows[i]);
    EXPECT_EQ(calls[i].intermediate_shape[0], rows[i]);
    EXPECT_EQ(calls[i].intermediate, calls[0].intermediate);
    // The outputs are consecutive slices of one buffer that holds nothing else.
    EXPECT_EQ(calls[i].output - calls[0].output,
              static_cast<int64_t>(i) * 4 * 2 * kHidden * int64_t{sizeof(float)});
    EXPECT_NE(calls[i].output, calls[i].intermediate);
  }
}

// Each part is sent while the next is computed, which on the CPU means at once.
TEST(ModularKernel, ResultsGoBackInParts) {
  constexpr int64_t kWide = 768;  // six blocks of 128 columns
  for (const bool is_async : {false, true}) {
    for (const int asked : {1, 2, 4, 6, 64}) {
      SCOPED_TRACE(asked);
      Journal journal;
      Bench bench({.is_async = is_async, .journal = &journal}, kWide, asked);
      const Tensor output = bench.forward();
      expect_same_bits(output, expected_sum(bench.input));
      const int parts = asked == 4 ? 3 : std::min(asked, 6);
      EXPECT_EQ(bench.kernel->last_combine_parts(), parts);
      const auto told = std::count_if(journal.begin(), journal.end(), [](const std::string& what) {
        return what.starts_with("columns from");
      });
      EXPECT_EQ(told, parts == 1 ? 0 : parts);
    }
  }
}

// The caller's bound on SMs holds for every part.
TEST(ModularKernel, PartsTakeNoMoreSmsThanTheCallMay) {
  Bench bench(FakePrepareFinalize::Options{}, 512, /*combine_parts=*/4);
  for (const int max_sms : {0, 40}) {
    bench.context.max_sms = max_sms;
    bench.forward();
    EXPECT_EQ(bench.experts->calls.back().max_sms, max_sms);
    EXPECT_EQ(bench.experts->calls.back().later_parts_sms, max_sms);
  }
}

// Experts without rows do not report parts, but the other ranks wait for all of them.
TEST(ModularKernel, ARankWithoutRowsTakesPartInEveryPart) {
  Journal journal;
  Bench bench({.drops_all_rows = true, .journal = &journal}, 512, /*combine_parts=*/4);
  bench.forward();
  EXPECT_EQ(std::count(journal.begin(), journal.end(), "finalize"), 4);
}

TEST(ModularKernel, PartsAreWorthAKernelEach) {
  constexpr int64_t kRows = 12288;  // 48 MiB with 2048 columns in bf16
  const auto parts = [](int asked, int64_t rows, int64_t hidden, int num_ranks) {
    return num_combine_parts(asked, rows, hidden, DType::kBF16, num_ranks);
  };
  EXPECT_EQ(parts(0, 0, 2048, 8), 1);
  EXPECT_EQ(parts(0, 100 * kRows, 2048, 1), 1);  // nothing leaves the rank
  EXPECT_EQ(parts(0, kRows - 1, 2048, 2), 1);    // half of the rows leave it
  EXPECT_EQ(parts(0, kRows, 2048, 2), 2);
  EXPECT_EQ(parts(0, 4 * kRows - 1, 2048, 2), 2);  // 3 do not divide 16 blocks
  EXPECT_EQ(parts(0, 4 * kRows, 2048, 2), 4);
  EXPECT_EQ(parts(0, 100 * kRows, 2048, 4), 4);
  EXPECT_EQ(parts(0, 100 * kRows, 2880, 4), 1);  // 22.5 blocks
  EXPECT_EQ(parts(5, 1, 2048, 4), 4);
}

// The experts write to the output itself, unless they also read from there.
TEST(ModularKernel, FinalRowsAreWrittenInPlace) {
  const FakeExperts::Options options{.kind = WeightAndReduceKind::kNoOp};
  for (const int64_t num_tokens : {5, 4, 0}) {
    for (const bool on_hidden : {false, true}) {
      Bench bench(make_no_ep(), fake_desc(kExperts, 2, kHidden), options, {.chunk_tokens = 4});
      bench.set_tokens(num_tokens);
      const Tensor expected = expected_sum(bench.input);
      const Tensor output =
          on_hidden ? bench.input.hidden : random_tensor(expected.shape(), DType::kF32, 14);
      bench.kernel->forward(bench.input, output, {}, bench.context);
      if (num_tokens == 0) {
        continue;
      }
      EXPECT_LT(relative_error(output, expected), 1e-6);
      const auto& calls = bench.experts->calls;
      ASSERT_EQ(calls.size(), num_tokens > 4 ? 2u : 1u);
      EXPECT_EQ(calls[0].output == output.bytes(), !on_hidden);
      if (num_tokens > 4) {
        EXPECT_EQ(calls[1].output - calls[0].output, 4 * kHidden * int64_t{sizeof(float)});
      }
    }
  }
}

TEST(ModularKernel, ChunksOnlyWhereSupportedAndNeeded) {
  Bench refuses(make_no_ep(), fake_desc(kExperts, 2, kHidden), {.supports_chunking = false},
                {.chunk_tokens = 2});
  refuses.set_tokens(5);
  refuses.forward();
  EXPECT_EQ(refuses.experts->calls.size(), 1u);
  Bench exact(make_no_ep(), fake_desc(kExperts, 2, kHidden), {}, {.chunk_tokens = 5});
  exact.set_tokens(5);
  exact.forward();
  EXPECT_EQ(exact.experts->calls.size(), 1u);
}

TEST(ModularKernel, ChunksRecountExpertTokens) {
  Bench bench(fake_pf({.with_counts = true}), fake_desc(3, 2, kHidden), {}, {.chunk_tokens = 2});
  bench.set_tokens(4);
  bench.input.topk_ids = ids_of({4, 2}, {0, 1, 0, 2, 1, 2, 1, 2});
  bench.forward();
  ASSERT_EQ(bench.experts->calls.size(), 2u);
  EXPECT_EQ(bench.experts->calls[0].counts, (std::vector<int32_t>{2, 1, 1}));
  EXPECT_EQ(bench.experts->calls[1].counts, (std::vector<int32_t>{0, 2, 2}));
  EXPECT_EQ(ints(bench.kernel->last_expert_load()), (std::vector<int32_t>{2, 3, 3}));

  Bench without(make_no_ep(), fake_desc(3, 2, kHidden), {}, {.chunk_tokens = 2});
  without.set_tokens(4);
  without.forward();
  EXPECT_TRUE(without.experts->calls[0].counts.empty());
}

TEST(ModularKernel, OneScaleIsNotSliced) {
  for (const bool per_token : {false, true}) {
    Bench bench(make_no_ep(), fake_desc(kExperts, 1, kHidden),
                {.quant = QuantConfig::fp8_w8a8(weight_scales(kExperts), per_token)},
                {.chunk_tokens = 2});
    bench.set_tokens(5);
    bench.forward();
    ASSERT_EQ(bench.experts->calls.size(), 3u);
    EXPECT_EQ(bench.experts->calls[0].scale_numel, per_token ? 2 : 1);
    EXPECT_EQ(bench.experts->calls[2].scale_numel, 1);
  }
}

TEST(ModularKernel, ExpertsThatQuantizeGetPlainRows) {
  Bench bench(make_no_ep(), fake_desc(kExperts, 1, kHidden),
              {.expects_unquantized_inputs = true,
               .quant = QuantConfig::fp8_w8a8(weight_scales(kExperts))});
  bench.set_tokens(3);
  EXPECT_LT(relative_error(bench.forward(), expected_sum(bench.input)), 1e-6);
  EXPECT_EQ(bench.experts->calls[0].scale_numel, -1);
}

TEST(ModularKernel, NoTokensNoExperts) {
  Bench bench(make_no_ep(), fake_desc(kExperts, 2, kHidden));
  bench.set_tokens(0);
  EXPECT_EQ(bench.forward().dim(0), 0);
  EXPECT_TRUE(bench.experts->calls.empty());
  bench.set_tokens(4);
  bench.forward();
  bench.set_tokens(0);
  bench.forward();
  EXPECT_EQ(ints(bench.kernel->last_expert_load()), std::vector<int32_t>(kExperts, 0));
}

TEST(ModularKernel, NoReceivedRowsStillFinalize) {
  Journal journal;
  Bench bench(fake_pf({.drops_all_rows = true, .journal = &journal}),
              fake_desc(kExperts, 2, kHidden), {.journal = &journal});
  bench.set_tokens(3);
  EXPECT_EQ(floats(bench.forward()), std::vector<float>(3 * kHidden, 0.0f));
  EXPECT_EQ(journal, (Journal{"prepare", "finalize"}));
}

TEST(ModularKernel, InPlaceOutput) {
  Bench bench(make_no_ep(), fake_desc(kExperts, 2, kHidden), {}, {.chunk_tokens = 3});
  bench.set_tokens(8);
  const Tensor expected = bench.forward();
  bench.kernel->forward(bench.input, bench.input.hidden, {}, bench.context);
  expect_same_bits(bench.input.hidden, expected);
}

TEST(ModularKernel, NoMicrobatchIsWrittenWhereALaterOneHasNoRoom) {
  const ExpertsDesc desc = fake_desc(kExperts, 3, kHidden);
  Bench bench(/*is_batched=*/true, 2, desc, {.microbatches = 2, .min_microbatch_tokens = 0});
  bench.set_tokens(2);
  bench.input.topk_ids = ids_of({2, 3}, {0, 1, 2, 0, 0, 0});
  const Tensor before = bench.input.hidden.clone();
  expect_error({"rows for local expert 0 is 3", "2"},
               [&] { bench.kernel->forward(bench.input, bench.input.hidden, {}, bench.context); });
  expect_same_bits(bench.input.hidden, before);
}

TEST(ModularKernel, ExpertMapsOfTwoRanksAddUp) {
  Bench all(make_no_ep(), fake_desc(kExperts, 2, kHidden));
  all.set_tokens(9);
  const Tensor expected = all.forward();
  // The fake gives y = (local index + 1) * x, so the results of the second rank lack 3 * x, which
  // is added here.
  for (const bool is_batched : {false, true}) {
    std::vector<Tensor> parts;
    for (const int rank : {0, 1}) {
      ExpertsDesc desc = fake_desc(kExperts, 2, kHidden);
      desc.num_local_experts = 3;
      Bench part(is_batched, 9, desc, {.chunk_tokens = 4});
      part.input = all.input;
      part.input.expert_map =
          rank == 0 ? ids_of({6}, {0, 1, 2, -1, -1, -1}) : ids_of({6}, {-1, -1, -1, 0, 1, 2});
      parts.push_back(part.forward());
      int64_t load = 0;
      for (const int32_t count : ints(part.kernel->last_expert_load())) {
        load += count;
      }
      int64_t selected = 0;
      for (const int32_t id : ints(all.input.topk_ids)) {
        selected += (id / 3 == rank);
      }
      EXPECT_EQ(load, selected);
      EXPECT_EQ(part.experts->calls[0].has_map, !is_batched);
    }
    const Tensor sum = Tensor::empty(expected.shape(), DType::kF32);
    for (int64_t i = 0; i < sum.numel(); ++i) {
      float missing = 0.0f;
      for (int64_t k = 0; k < 2; ++k) {
        const int64_t selection = i / kHidden * 2 + k;
        if (ints(all.input.topk_ids)[static_cast<size_t>(selection)] >= 3) {
          missing +=
              3 * get_float(all.input.hidden, i) * get_float(all.input.topk_weights, selection);
        }
      }
      sum.data<float>()[i] = get_float(parts[0], i) + get_float(parts[1], i) + missing;
    }
    EXPECT_LT(relative_error(sum, expected), 1e-6);
  }
}

TEST(ModularKernel, WeightOnInputIsNotAppliedTwice) {
  for (const bool is_batched : {false, true}) {
    Bench bench(is_batched, 5, fake_desc(kExperts, 1, kHidden));
    bench.set_tokens(5);
    const Tensor before = bench.input.hidden.clone();
    bench.input.apply_router_weight_on_input = true;
    // The fake is linear, so a weight on the input has the same effect as one on the output.
    EXPECT_LT(relative_error(bench.forward(), expected_sum(bench.input)), 1e-6);
    expect_same_bits(bench.input.hidden, before);
  }
}

TEST(ModularKernel, LayersShareWorkspacesAndMicrobatchesDoNot) {
  Bench first(make_no_ep(), fake_desc(kExperts, 2, kHidden));
  Bench second(make_no_ep(), fake_desc(kExperts, 2, kHidden));
  second.context.workspaces = &first.pool;
  first.set_tokens(6);
  second.set_tokens(6);
  first.forward();
  const int64_t bytes = first.pool.bytes();
  second.forward();
  EXPECT_EQ(first.pool.bytes(), bytes);
  EXPECT_EQ(first.experts->calls[0].intermediate, second.experts->calls[0].intermediate);
  second.context.microbatch = 1;
  second.forward();
  EXPECT_EQ(first.pool.bytes(), 2 * bytes);
  EXPECT_NE(first.experts->calls[0].intermediate, second.experts->calls[1].intermediate);
}

TEST(ModularKernel, SecondCallIsNotTouchedByTheFirst) {
  Bench bench(make_no_ep(), fake_desc(kExperts, 2, kHidden), {}, {.chunk_tokens = 4});
  bench.set_tokens(3);
  const Tensor small = bench.forward();
  bench.set_tokens(11);
  bench.forward();
  bench.set_tokens(3);
  expect_same_bits(bench.forward(), small);
}

// Shared experts that record when they run.  They give y = x, because their only id is 0.
std::shared_ptr<const SharedExperts> fake_shared(Journal* journal) {
  return std::make_shared<SharedExperts>(
      std::make_unique<FakeExperts>(fake_desc(1, 1, kHidden, ActivationFormat::kBatched),
                                    FakeExperts::Options{.journal = journal}),
      Tensor());
}

TEST(ModularKernel, SharedExpertsRunWhileTheCombineIsUnderWay) {
  for (const bool is_async : {false, true}) {
    Journal journal;
    Bench bench(fake_pf({.is_async = is_async, .journal = &journal}),
                fake_desc(kExperts, 2, kHidden), {.journal = &journal}, {}, fake_shared(&journal));
    bench.set_tokens(4);
    Profile profile;
    bench.context.profile = &profile;
    const Tensor output = Tensor::empty({4, kHidden}, DType::kF32);
    const Tensor shared_output = Tensor::empty({4, kHidden}, DType::kF32);
    bench.kernel->forward(bench.input, output, shared_output, bench.context);
    EXPECT_EQ(journal, is_async
                           ? (Journal{"prepare_async", "prepare hook", "prepare", "experts",
                                      "finalize_async", "experts", "finalize hook", "finalize"})
                           : (Journal{"prepare", "experts", "finalize", "experts"}));
    expect_same_bits(shared_output, bench.input.hidden);
    EXPECT_LT(relative_error(output, expected_sum(bench.input)), 1e-6);
    EXPECT_EQ(stage_names(profile),
              (std::vector<std::string>{"prepare", "experts", "finalize", "shared"}));
  }
}

TEST(ModularKernel, AddsTheSharedExpertsWhereAsked) {
  Journal journal;
  for (const bool is_async : {false, true}) {
    Bench bench(fake_pf({.is_async = is_async}), fake_desc(kExperts, 2, kHidden), {}, {},
                fake_shared(&journal));
    bench.set_tokens(5);
    const Tensor routed = Tensor::empty({5, kHidden}, DType::kF32);
    const Tensor shared = Tensor::empty({5, kHidden}, DType::kF32);
    const Tensor both = Tensor::empty({5, kHidden}, DType::kF32);
    bench.kernel->forward(bench.input, routed, shared, bench.context);
    bench.input.add_shared = true;
    bench.kernel->forward(bench.input, both, shared, bench.context);
    for (int64_t i = 0; i < both.numel(); ++i) {
      EXPECT_EQ(get_float(both, i), get_float(routed, i) + get_float(shared, i)) << i;
    }
  }
}

TEST(ModularKernel, MonolithicRoutesAfterPrepare) {
  const auto router = gateless_router(kExperts, 2);
  Journal journal;
  Bench bench(fake_pf({.is_monolithic = true, .journal = &journal}),
              fake_desc(kExperts, 2, kHidden), {}, {}, nullptr, router);
  bench.input.hidden = random_tensor({5, kHidden}, DType::kF32, 1);
  bench.input.router_logits = random_tensor({5, kExperts}, DType::kF32, 2);
  const Tensor output = bench.forward();

  KernelInput chosen = bench.input;
  chosen.topk_ids = Tensor::empty({5, 2}, DType::kI32);
  chosen.topk_weights = Tensor::empty({5, 2}, DType::kF32);
  router->select(bench.input.router_logits, chosen.topk_ids, chosen.topk_weights, {});
  EXPECT_LT(relative_error(output, expected_sum(chosen)), 1e-6);
  EXPECT_EQ(journal, (Journal{"prepare", "finalize"}));

  // Logits of another float type are widened, which is exact.
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor narrow = convert(bench.input.router_logits, dtype);
    bench.input.router_logits = narrow;
    const Tensor of_narrow = bench.forward();
    bench.input.router_logits = convert(narrow, DType::kF32);
    const Tensor of_wide = bench.forward();
    EXPECT_EQ(relative_error(of_narrow, of_wide), 0.0);
  }
}

}  // namespace
}  // namespace moebius::testing
