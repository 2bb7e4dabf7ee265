// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Transports: which arguments share an object, and how many bytes it holds.
#include "moebius/transports.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "tests/error_text.h"

namespace moebius::testing {
namespace {

constexpr int64_t kTokens = 24;
constexpr int64_t kHidden = 256;
constexpr int64_t kTopk = 2;

ExpertPlacement placement_of(const Group& group) {
  return ExpertPlacement::linear(4 * group.size(), group.size());
}

LowLatencyOptions options_of(LowLatencySum sum = LowLatencySum::kSelections) {
  return {.max_tokens = kTokens, .hidden = kHidden, .topk = kTopk, .sum = sum};
}

TEST(Transports, EqualArgumentsShareAnObject) {
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    Transports transports(group);
    const ExpertPlacement placement = placement_of(group);
    EXPECT_EQ(transports.bytes(), 0);
    const auto high = transports.high_throughput(placement);
    EXPECT_EQ(high, transports.high_throughput(placement, DispatchConfig::for_dispatch(2),
                                               DispatchConfig::for_combine(2)));
    EXPECT_NE(high, transports.high_throughput(placement, DispatchConfig{.num_sms = 2}));
    EXPECT_NE(high,
              transports.high_throughput(ExpertPlacement::from_ranks({1, 0, 1, 0, 1, 0, 1, 0}, 2)));
    EXPECT_EQ(high, transports.high_throughput(placement));
    high->set_configs(DispatchConfig{.num_sms = 4}, DispatchConfig{.num_sms = 4});
    EXPECT_EQ(high, transports.high_throughput(placement));  // layers find it as before
    const auto low = transports.low_latency(placement, options_of());
    EXPECT_EQ(low, transports.low_latency(placement_of(group), options_of()));
    const auto sums = transports.low_latency(placement, options_of(LowLatencySum::kRanks));
    EXPECT_NE(low, sums);
    EXPECT_EQ(&high->group(), &group);
    EXPECT_EQ(low->options(), options_of());
    EXPECT_EQ(transports.bytes(), low->bytes() + sums->bytes());
  });
}

// Every token goes to the first expert of each of two ranks.
Tensor ids_of(const Group& group) {
  const Tensor ids = Tensor::empty({kTokens, kTopk}, DType::kI32);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t rank = (group.rank() + i % kTopk) % group.size();
    ids.data<int32_t>()[i] = static_cast<int32_t>(4 * rank);
  }
  return ids;
}

// A rank that is gone before the others make their first call is none of their business, if there
// is memory for the transport already.
TEST(Transports, ReservedMemoryNeedsNoOtherRank) {
  for (const bool is_enough : {true, false}) {
    SCOPED_TRACE(is_enough ? "enough" : "too little");
    run_thread_ranks({.num_ranks = 3, .timeout = std::chrono::seconds(2)}, [&](Group& group) {
      Transports transports(group);
      LowLatencyOptions options = options_of();
      options.excludes_missing = true;
      const int64_t one = LowLatency::size_hint(options, group.size(), 4 * group.size());
      EXPECT_THROW(transports.reserve_low_latency(-1), InvalidArgument);
      EXPECT_THROW(transports.reserve_low_latency(int64_t{1} << 61), InvalidArgument);
      transports.reserve_low_latency(is_enough ? 2 * one + 256 : one - 1);
      const int64_t reserved = transports.bytes();
      if (group.rank() == 1) {
        return;
      }
      const auto make = [&] { return transports.low_latency(placement_of(group), options); };
      if (!is_enough) {
        EXPECT_THROW(make(), CommError);
        return;
      }
      const auto low = make();
      EXPECT_EQ(low, make());
      EXPECT_LT(transports.bytes() - reserved, low->bytes());  // a part was taken, none was added
      const Stream stream = Stream::cpu(1);
      const Tensor x = Tensor::zeros({kTokens, kHidden}, DType::kBF16);
      const Tensor ids = ids_of(group);
      const auto rows = low->dispatch({.x = x, .topk_ids = ids}, stream);
      const Tensor weights = Tensor::zeros({kTokens, kTopk}, DType::kF32);
      low->combine({.x = rows.x, .topk_ids = ids, .topk_weights = weights}, *rows.handle, stream);
      EXPECT_EQ(low->dead_ranks(), (std::vector<bool>{false, true, false}));
      options.hidden /= 2;  // another shape has room in what is left
      make()->dispatch({.x = Tensor::zeros({1, options.hidden}, DType::kBF16),
                        .topk_ids = Tensor::zeros({1, kTopk}, DType::kI32)},
                       stream);
    });
  }
}

DispatchInput dispatch_input(const Group& group) {
  DispatchInput input;
  input.payloads = {Tensor::zeros({kTokens, kHidden}, DType::kBF16)};
  input.topk_ids = ids_of(group);
  input.topk_weights = Tensor::zeros({kTokens, kTopk}, DType::kF32);
  return input;
}

void expect_hinted_bytes(Group& group) {
  HighThroughput transport(group, placement_of(group));
  EXPECT_EQ(transport.bytes(), 0);
  const Stream stream = Stream::cpu(1);
  HighThroughputNeeds needs{.payload_row_bytes = {2 * kHidden},
                            .topk = kTopk,
                            .has_weights = true,
                            .rows = 2 * kTokens,
                            .num_results = 2,
                            .combine_row_bytes = 2 * kHidden};
  const int64_t hint = HighThroughput::size_hint(needs, transport.placement(), Device::cpu(),
                                                 group.shares_address_space());
  for (int call = 0; call < 3; ++call) {
    const DispatchOutput first = transport.dispatch(dispatch_input(group), stream);
    const DispatchOutput second = transport.dispatch(dispatch_input(group), stream);
    for (const DispatchOutput* output : {&second, &first}) {
      EXPECT_EQ(output->handle->num_rows(), needs.rows);
      CombineInput back;
      back.x = output->payloads[0];
      transport.combine(back, *output->handle, stream);
    }
    EXPECT_EQ(transport.bytes(), hint) << "call " << call;
  }
}

TEST(HighThroughputBytes, AreTheHintAmongThreads) {
  run_thread_ranks({.num_ranks = 3}, expect_hinted_bytes);
}

TEST(HighThroughputBytes, AreTheHintAmongProcesses) {
  run_process_ranks({.num_ranks = 3}, [](Group& group) {
    expect_hinted_bytes(group);
    if (::testing::Test::HasFailure()) {
      throw Error("an expectation failed in this rank");
    }
  });
}

TEST(HighThroughputBytes, OfGpusAreMoreThanOfRowsAlone) {
  HighThroughputNeeds needs{.payload_row_bytes = {2 * kHidden}, .topk = kTopk, .rows = 100};
  const ExpertPlacement placement = ExpertPlacement::linear(16, 4);
  const auto hint = [&] { return HighThroughput::size_hint(needs, placement, Device::cuda(0)); };
  const int64_t without_rows = hint() - HighThroughput::size_hint(needs, placement);
  EXPECT_GT(without_rows, 0);  // control words
  needs.combine_row_bytes = 2 * kHidden;
  needs.combine_copies = 64;
  EXPECT_GE(hint() - HighThroughput::size_hint(needs, placement) - without_rows,
            64 * 2 * kHidden * 5 / 4);
  needs.rows = -1;
  expect_mentions(message_of(hint), "rows is -1, expected");
}

TEST(HighThroughputBytes, ThatOverflowAreRefused) {
  const HighThroughputNeeds good{
      .payload_row_bytes = {2 * kHidden}, .topk = kTopk, .rows = 100, .combine_copies = 64};
  const auto refusal = [&](const auto& change) {
    HighThroughputNeeds needs = good;
    change(needs);
    return message_of<InvalidArgument>(
        [&] { HighThroughput::size_hint(needs, ExpertPlacement::linear(16, 4), Device::cuda(0)); });
  };
  constexpr int64_t kLarge = int64_t{1} << 60;
  const auto expect_count = [&](int64_t HighThroughputNeeds::*count, const std::string& what) {
    expect_mentions(refusal([&](HighThroughputNeeds& needs) { needs.*count = kLarge; }),
                    what + " is 1152921504606846976, expected at most 2147483647");
  };
  expect_count(&HighThroughputNeeds::topk, "topk");
  expect_count(&HighThroughputNeeds::rows, "rows");
  expect_count(&HighThroughputNeeds::num_results, "num_results");
  expect_count(&HighThroughputNeeds::combine_copies, "combine_copies");
  const std::string most = "bytes, expected at most 4611686018427387904";
  expect_mentions(refusal([](auto& needs) { needs.payload_row_bytes = {kLarge, kLarge}; }), most);
  expect_mentions(refusal([](auto& needs) { needs.combine_row_bytes = kLarge; }), most);
}

TEST(LowLatencyBytes, GrowByTheRowsOfTwoResults) {
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    LowLatency transport(group, placement_of(group), options_of());
    const int64_t hint = LowLatency::size_hint(options_of(), 2, 8);
    const int64_t at_first = transport.bytes();
    EXPECT_GE(at_first, hint);
    EXPECT_LE(at_first, hint + 1024);
    const Stream stream = Stream::cpu(1);
    const LowLatencyDispatchInput input{Tensor::zeros({kTokens, kHidden}, DType::kBF16),
                                        ids_of(group)};
    constexpr int64_t kLocal = 4;
    constexpr int64_t kRanks = 2;
    constexpr int64_t kRows = kLocal * kRanks * kTokens;
    // A row has a tag and a token; there are a count per expert and a range per expert and rank.
    constexpr int64_t kResult = kRows * (2 * kHidden + 4 + 4) + 4 * kLocal + 8 * kLocal * kRanks;
    for (int call = 1; call <= 4; ++call) {
      transport.dispatch(input, stream);
      EXPECT_EQ(transport.bytes(), at_first + std::min(call, 2) * kResult);
    }
  });
}

// The bank of a call is free when the result of the call before last is gone, whichever else is.
TEST(LowLatencyResults, AThirdIsRefusedByName) {
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    LowLatency transport(group, placement_of(group), options_of());
    const Stream stream = Stream::cpu(1);
    const LowLatencyDispatchInput input{Tensor::zeros({kTokens, kHidden}, DType::kBF16),
                                        ids_of(group)};
    std::vector<LowLatencyDispatchOutput> results;
    results.push_back(transport.dispatch(input, stream));
    results.push_back(transport.dispatch(input, stream));
    EXPECT_EQ(message_of([&] { transport.dispatch(input, stream); }),
              "call 3 of a low-latency dispatch needs the bank of call 1, whose result is still "
              "alive: at most 2 results are, and each call takes the bank of the call before "
              "last");
    results.erase(results.begin());
    results.push_back(transport.dispatch(input, stream));
  });
}

}  // namespace
}  // namespace moebius::testing
