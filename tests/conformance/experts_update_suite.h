// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Whose memory experts compute on, and what update_weights() promises, for every implementation in
// every scheme.  Include it in one source file of a test executable.
#pragma once

#include <cstring>
#include <string>

#include "tests/conformance/experts_suite.h"
#include "tests/error_text.h"

namespace moebius::experts_suite {

// Overwrites what the caller gave, as one does who reuses or frees the memory.
inline void spoil(const ExpertWeights& weights, const testing::Place& place) {
  for_each_tensor(weights, [&](const Tensor& tensor, const auto&) {
    if (tensor) {
      const Tensor garbage = poisoned(tensor.shape(), tensor.dtype());
      copy(garbage, tensor, place.stream);
      place.stream.synchronize();
    }
  });
}

// Handles on copies of the tensors that share nothing with `weights`.
inline ExpertWeights clone_of(ExpertWeights weights) {
  for_each_tensor(weights,
                  [](Tensor& tensor, const auto&) { tensor = tensor ? tensor.clone() : tensor; });
  return weights;
}

// Two sets of weights of one scheme, and the same input for both.
struct TwoWeights {
  TwoWeights(ExpertCase c, std::string_view impl) : place(stream_of(impl, 2)), name(impl) {
    c.biased = true;
    old_one = ExpertProblemMaker(61).make(kTiny, c);
    new_one = ExpertProblemMaker(62).make(kTiny, c);
    new_one.input = old_one.input;
  }
  std::unique_ptr<Experts> make(const ExpertProblem& p) const {
    return experts_suite::make(p, name, 2);
  }
  Tensor rows(const Experts& experts) const {
    return valid_rows(old_one, run(experts, old_one.input, place.stream));
  }

  testing::Place place;
  std::string name;
  ExpertProblem old_one;
  ExpertProblem new_one;
};

TEST_P(ExpertsScheme, AnUpdateGivesTheBitsOfFreshExperts) {
  const auto& [impl, format, scheme] = GetParam();
  const TwoWeights two({.scheme = scheme, .format = format}, impl);
  const auto experts = two.make(two.old_one);
  const Tensor before = two.rows(*experts);
  const Tensor expected = two.rows(*two.make(two.new_one));
  EXPECT_FALSE(same_bits(before, expected));
  // From the host, then back from the device of the experts.
  experts->update_weights(two.new_one.weights, two.place.stream);
  EXPECT_TRUE(same_bits(two.rows(*experts), expected));
  const ExpertWeights there = clone_of(placed(two.old_one.weights, two.place));
  experts->update_weights(there, two.place.stream);
  EXPECT_TRUE(same_bits(two.rows(*experts), before));
  // One weight after the other.
  ExpertWeights part = two.new_one.weights;
  part.w1 = {};
  part.quant.w1 = part.quant.a1 = {};
  experts->update_weights(part, two.place.stream);
  part = two.new_one.weights;
  part.w2 = {};
  part.quant.w2 = part.quant.a2 = {};
  experts->update_weights(part, two.place.stream);
  EXPECT_TRUE(same_bits(two.rows(*experts), expected));
}

TEST_P(ExpertsScheme, OwnedWeightsDoNotFollowTheCallersMemory) {
  const auto& [impl, format, scheme] = GetParam();
  const TwoWeights two({.scheme = scheme, .format = format}, impl);
  ExpertProblem p = two.old_one;
  p.weights = clone_of(placed(p.weights, two.place));
  const auto experts = make_experts(p.desc, p.weights, two.place.stream, impl);
  EXPECT_FALSE(experts->retains_weights());
  const Tensor before = two.rows(*experts);
  spoil(p.weights, two.place);
  EXPECT_TRUE(same_bits(two.rows(*experts), before));
  // Nor do they follow the memory of an update.
  const ExpertWeights given = clone_of(placed(two.new_one.weights, two.place));
  experts->update_weights(given, two.place.stream);
  const Tensor after = two.rows(*experts);
  spoil(given, two.place);
  EXPECT_TRUE(same_bits(two.rows(*experts), after));
}

TEST_P(ExpertsScheme, LentWeightsAreUpdatedWhereTheyLie) {
  const auto& [impl, format, scheme] = GetParam();
  const TwoWeights two({.scheme = scheme, .format = format}, impl);
  ExpertProblem p = two.old_one;
  p.desc.weight_memory = WeightMemory::kLent;
  p.weights = clone_of(placed(p.weights, two.place));
  const auto experts = make_experts(p.desc, p.weights, two.place.stream, impl);
  EXPECT_TRUE(experts->retains_weights());
  const Tensor before = two.rows(*experts);
  EXPECT_TRUE(same_bits(before, two.rows(*two.make(two.old_one))));
  testing::expect_error({"w1 is at", "where it was lent"},
                        [&] { experts->update_weights(clone_of(p.weights), two.place.stream); });
  std::vector<Tensor> values;
  for_each_tensor(two.new_one.weights,
                  [&](const Tensor& tensor, const auto&) { values.push_back(tensor); });
  size_t i = 0;
  for_each_tensor(p.weights, [&](const Tensor& tensor, const auto&) {
    if (const Tensor& value = values[i++]) {
      copy(value, tensor, two.place.stream);
    }
  });
  two.place.stream.synchronize();
  experts->update_weights(p.weights, two.place.stream);
  EXPECT_TRUE(same_bits(two.rows(*experts), two.rows(*two.make(two.new_one))));
}

// What differs is refused with both values, and what fits beside it is not written.
TEST_P(ExpertsScheme, AnUpdateThatDiffersChangesNothing) {
  const auto& [impl, format, scheme] = GetParam();
  const TwoWeights two({.scheme = scheme, .format = format}, impl);
  const auto experts = two.make(two.old_one);
  const Tensor before = two.rows(*experts);
  const auto expect_refused = [&](testing::Parts parts, auto change) {
    ExpertWeights weights = two.new_one.weights;
    change(weights);
    testing::expect_error(parts, [&] { experts->update_weights(weights, two.place.stream); });
    testing::expect_error(parts, [&] { experts->expect_update(weights); });
    EXPECT_TRUE(same_bits(two.rows(*experts), before));
  };
  expect_refused({"shape of w2", "[6, 96, 64]", "[5, 96, 64]"},
                 [](ExpertWeights& w) { w.w2 = w.w2.slice(0, 5); });
  expect_refused({"w2", "bool", name(two.old_one.weights.w2.dtype())},
                 [](ExpertWeights& w) { w.w2 = Tensor::zeros(w.w2.shape(), DType::kBool); });
  expect_refused({"w2_bias is missing", "given"}, [](ExpertWeights& w) { w.quant.w2.bias = {}; });
  expect_refused({"w2_bias", "bf16", "f32"},
                 [](ExpertWeights& w) { w.quant.w2.bias = convert(w.quant.w2.bias, DType::kF32); });
  expect_refused({"w1", "is given without its weight"}, [](ExpertWeights& w) { w.w1 = {}; });
  expect_refused({"lora scaling is given", "missing"},
                 [](ExpertWeights& w) { w.lora.scaling = Tensor::zeros({1}, DType::kF32); });
  expect_refused({"w2 is", "mxfp6_e3m2", "expected"},
                 [](ExpertWeights& w) { w.quant.w2.format = QuantFormat::kMxfp6E3M2; });
  if (scheme.scales != WeightScales::kNone) {
    expect_refused({"w1_scale is missing"}, [](ExpertWeights& w) { w.quant.w1.scale = {}; });
  }
}

TEST_P(ExpertsContract, AdaptersAreUpdatedAlone) {
  ExpertCase c = base_case();
  c.num_adapters = 2;
  c.lora_rank = 8;
  const TwoWeights two(c, impl());
  const auto experts = two.make(two.old_one);
  ExpertWeights adapters;
  adapters.lora = two.new_one.weights.lora;
  experts->update_weights(adapters, two.place.stream);
  ExpertProblem mixed = two.old_one;
  mixed.weights.lora = two.new_one.weights.lora;
  EXPECT_TRUE(same_bits(two.rows(*experts), two.rows(*two.make(mixed))));
  experts->update_weights(two.new_one.weights, two.place.stream);
  EXPECT_TRUE(same_bits(two.rows(*experts), two.rows(*two.make(two.new_one))));
}

// Some codes of scales have no packed form.  Implementations of f32 products then hold values, and
// others refuse the update as they would refuse such weights.
TEST_P(ExpertsContract, ScalesWithoutAPackedFormAreTakenOrRefused) {
  for (const std::string_view scheme : {"mxfp8", "mxfp4_w4a16", "nvfp4"}) {
    SCOPED_TRACE(scheme);
    if (!takes(base_case(scheme_of(scheme)))) {
      continue;
    }
    TwoWeights two(base_case(scheme_of(scheme)), impl());
    two.new_one.weights = clone_of(two.new_one.weights);
    two.new_one.weights.quant.w2.scale.bytes()[5] =
        scheme == "nvfp4" ? std::byte{0x7f} : std::byte{254};
    const auto experts = two.make(two.old_one);
    const Tensor before = two.rows(*experts);
    if (!refusal(two.new_one, impl()).empty()) {
      testing::expect_error({"w2", "scale 5"}, [&] {
        experts->update_weights(two.new_one.weights, two.place.stream);
      });
      EXPECT_TRUE(same_bits(two.rows(*experts), before));
      continue;
    }
    experts->update_weights(two.new_one.weights, two.place.stream);
    EXPECT_TRUE(same_numbers(two.rows(*experts), two.rows(*two.make(two.new_one))));
    experts->update_weights(two.old_one.weights, two.place.stream);
    EXPECT_TRUE(same_bits(two.rows(*experts), before));
  }
}

}  // namespace moebius::experts_suite
