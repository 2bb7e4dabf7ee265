// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of the experts stage for LoRA adapters, run for every entry of experts_impls().
#pragma once

#include "tests/conformance/experts_suite.h"
#include "tests/error_text.h"

namespace moebius::experts_suite {

inline constexpr ActivationSpec kGated = {};
inline constexpr ActivationSpec kNotGated = {.gated = false};
inline constexpr ActivationSpec kInterleaved = {.kind = Activation::kSwigluOai,
                                                .interleaved = true};

inline ExpertCase with_adapters(ExpertCase c, int64_t num_adapters, int64_t rank, DType dtype) {
  c.num_adapters = num_adapters;
  c.lora_rank = rank;
  c.lora_dtype = dtype;
  return c;
}

// Returns w [L, rows, cols] in f32: the stored weight, plus scaling * B * A of one adapter where a
// and b, both f32, are defined.  `half_of(n)` says which r rows of A row n of B takes.
template <typename HalfOf>
Tensor merged(const Tensor& stored,
              const QuantDesc& desc,
              int64_t gate_rows,
              const Tensor& a,
              const Tensor& b,
              float scaling,
              int32_t adapter,
              HalfOf half_of) {
  const Tensor w = Tensor::empty(stored.shape(), DType::kF32);
  const int64_t rows = w.dim(1);
  const int64_t cols = w.dim(2);
  for (int64_t e = 0; e < w.dim(0); ++e) {
    dequantize_weight_rows(stored, desc, {e, 0, rows, gate_rows}, w[e].data<float>());
    if (!a) {
      continue;
    }
    const int64_t rank = b.dim(3);
    const int64_t expert = adapter * w.dim(0) + e;
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t k = 0; k < cols; ++k) {
        double sum = 0;
        for (int64_t j = 0; j < rank; ++j) {
          const int64_t a_row = expert * a.dim(2) + half_of(n) * rank + j;
          sum += static_cast<double>(b.data<float>()[(expert * rows + n) * rank + j]) *
                 static_cast<double>(a.data<float>()[a_row * cols + k]);
        }
        float& element = w[e].data<float>()[n * cols + k];
        element =
            static_cast<float>(static_cast<double>(element) + static_cast<double>(scaling) * sum);
      }
    }
  }
  return w;
}

// Plain f32 experts that have this adapter merged into their weights.
inline ExpertProblem merged_problem(const ExpertProblem& p, int32_t adapter) {
  ExpertProblem out = without_adapters(p);
  const LoraWeights& lora = p.weights.lora;
  const ActivationSpec& spec = p.desc.activation;
  const float scaling = lora.scaling.data<float>()[adapter];
  const int64_t i = p.desc.intermediate;
  const int64_t gate_rows = spec.interleaved ? 2 * i : i;
  const QuantConfig& quant = p.weights.quant;
  out.weights.w1 = merged(p.weights.w1, quant.w1, gate_rows, lora.w1_a, lora.w1_b, scaling, adapter,
                          [&](int64_t n) {
                            return !spec.gated ? 0 : spec.interleaved ? n % 2 : n / i;
                          });
  out.weights.w2 = merged(p.weights.w2, quant.w2, p.desc.hidden, lora.w2_a, lora.w2_b, scaling,
                          adapter, [](int64_t) { return 0; });
  out.weights.quant = {};
  out.weights.quant.w1.bias = quant.w1.bias;
  out.weights.quant.w2.bias = quant.w2.bias;
  return out;
}

// Expects the rows of every adapter to be those of experts whose weights have that adapter merged.
inline void expect_merged(const ExpertProblem& p, std::string_view impl) {
  const std::vector<int32_t> adapters = adapters_of_rows(p);
  const auto num_rows = static_cast<int64_t>(adapters.size());
  const Tensor actual = run_valid_rows(p, impl).view({num_rows, p.desc.hidden});
  for (int32_t adapter = 0; adapter < p.desc.num_adapters; ++adapter) {
    SCOPED_TRACE("adapter " + std::to_string(adapter));
    const ExpertProblem reference = merged_problem(p, adapter);
    const Tensor expected = run_valid_rows(reference, "ref").view(actual.shape());
    RelativeError error;
    int64_t compared = 0;
    for (int64_t r = 0; r < num_rows; ++r) {
      if (adapters[static_cast<size_t>(r)] != adapter) {
        continue;
      }
      ++compared;
      for (int64_t h = 0; h < p.desc.hidden; ++h) {
        error.add(get_float(actual[r], h), get_float(expected[r], h));
      }
    }
    EXPECT_GT(compared, 0);
    // Merged weights are rounded to f32 once more.
    EXPECT_LE(error.value(), 2 * tolerance(p.desc.in_dtype, std::nullopt,
                                           std::max(p.desc.hidden, p.desc.intermediate)));
  }
}

TEST_P(ExpertsScheme, AdaptersAgreeWithRef) {
  const auto& [impl, format, scheme] = GetParam();
  struct Numbers {
    ActivationSpec activation;
    DType dtype;
    int64_t rank;
    DType lora_dtype;
  };
  for (const Numbers& n : {Numbers{kGated, DType::kBF16, 8, DType::kBF16},
                           Numbers{kGated, DType::kF32, 64, DType::kF16},
                           Numbers{kNotGated, DType::kF16, 64, DType::kBF16},
                           Numbers{kInterleaved, DType::kF32, 5, DType::kF32}}) {
    for (const Problem& problem : {kTiny, kKBlocks}) {
      SCOPED_TRACE(std::string(problem.name) + " " + std::string(name(n.dtype)) + " rank " +
                   std::to_string(n.rank));
      const ExpertCase c = with_adapters(
          {.scheme = scheme, .dtype = n.dtype, .format = format, .activation = n.activation}, 3,
          n.rank, n.lora_dtype);
      expect_agrees(ExpertProblemMaker(30).make(problem, c), scheme, impl);
    }
  }
}

// One expert has more rows than a tile of any kernel.
TEST_P(ExpertsScheme, AdaptersAgreeWithRefOnManyRows) {
  const auto& [impl, format, scheme] = GetParam();
  const Problem problem = {"many", 531, 1, 1, 64, 32};
  const ExpertCase c = with_adapters({.scheme = scheme, .format = format}, 5, 16, DType::kBF16);
  expect_agrees(ExpertProblemMaker(31).make(problem, c), scheme, impl);
}

// Activations are quantized for adapters as they are for weights.
TEST_P(ExpertsScheme, AdaptersAreCloseToFloat64) {
  const auto& [impl, format, scheme] = GetParam();
  const ExpertCase c =
      with_adapters({.scheme = scheme, .format = format, .biased = true}, 2, 8, DType::kF32);
  expect_close_to_f64(c, 31, 100, impl);
}

TEST_P(ExpertsScheme, RowsWithoutAdapterKeepTheirBits) {
  const auto& [impl, format, scheme] = GetParam();
  const ExpertCase c =
      with_adapters({.scheme = scheme, .format = format, .biased = true}, 3, 8, DType::kBF16);
  ExpertProblem p = ExpertProblemMaker(33).make({"some", 61, 3, 2, 96, 64}, c);
  const Tensor plain = run_valid_rows(without_adapters(p), impl);
  // Where one scale spans rows of several tokens, the adapters of other tokens change it.
  const QuantDesc& a2 = p.weights.quant.a2;
  const auto spec = activation_spec(a2);
  const bool spans_rows = spec && (spec->format == QuantFormat::kNvfp4
                                       ? !a2.alpha_or_gscale.defined()
                                       : spec->group.is_per_tensor() && !a2.scale.defined());
  if (!spans_rows) {
    const std::vector<int32_t> adapters = adapters_of_rows(p);
    const Shape rows = {static_cast<int64_t>(adapters.size()), p.desc.hidden};
    const Tensor with = run_valid_rows(p, impl).view(rows);
    for (int64_t r = 0; r < rows[0]; ++r) {
      const bool same = same_bits(with[r], plain.view(rows)[r]);
      EXPECT_EQ(same, adapters[static_cast<size_t>(r)] == -1) << "row " << r;
    }
  }
  std::fill_n(p.input.lora_ids.data<int32_t>(), p.input.lora_ids.numel(), -1);
  EXPECT_TRUE(same_bits(run_valid_rows(p, impl), plain));
  p.input.lora_ids = {};
  EXPECT_TRUE(same_bits(run_valid_rows(p, impl), plain));
}

TEST_P(ExpertsContract, AdaptersAreMergedWeights) {
  if (!takes(f32_case())) {
    GTEST_SKIP() << "no experts of f32";
  }
  for (const ActivationSpec& activation : {kGated, kNotGated, kInterleaved}) {
    for (const int64_t rank : {3, 8, 64}) {
      SCOPED_TRACE(std::string(name(activation.kind)) + " rank " + std::to_string(rank));
      ExpertCase c = with_adapters(f32_case(), 3, rank, DType::kF32);
      c.activation = activation;
      c.biased = true;
      expect_merged(ExpertProblemMaker(34).make(kTiny, c), impl());
    }
  }
}

TEST_P(ExpertsContract, AdaptersBesideQuantizedWeightsAreMergedWeights) {
  if (!takes(f32_case())) {
    GTEST_SKIP() << "no experts of f32";
  }
  for (const Scheme& scheme : kSchemes) {
    if (scheme.activation || scheme.weight == QuantFormat::kNvfp4) {
      continue;  // f32 weights cannot stand for them
    }
    SCOPED_TRACE(scheme.name);
    const ExpertCase c = with_adapters(f32_case(scheme), 2, 8, DType::kF32);
    expect_merged(ExpertProblemMaker(39).make(kTiny, c), impl());
  }
}

TEST_P(ExpertsContract, AdaptersOfOneWeightOnly) {
  if (!takes(f32_case())) {
    GTEST_SKIP() << "no experts of f32";
  }
  for (const bool first : {true, false}) {
    const ExpertCase c = with_adapters(f32_case(), 2, 8, DType::kF32);
    ExpertProblem p = ExpertProblemMaker(35).make(kTiny, c);
    LoraWeights& lora = p.weights.lora;
    (first ? lora.w2_a : lora.w1_a) = {};
    (first ? lora.w2_b : lora.w1_b) = {};
    expect_merged(p, impl());
  }
}

// Lent adapters are read in place, so that a rewritten one is used from the next call on.
TEST_P(ExpertsContract, RewrittenAdaptersAreUsed) {
  const ExpertCase c = with_adapters(base_case(), 2, 8, DType::kF32);
  ExpertProblem p = ExpertProblemMaker(36).make(kTiny, c);
  p.desc.weight_memory = WeightMemory::kLent;
  const testing::Place place(stream_of(impl(), 2));
  p.weights = placed(p.weights, place);
  const auto experts = make(p, impl(), 2);
  const Tensor before = valid_rows(p, run(*experts, p.input, stream_of(impl(), 2)));
  ExpertProblemMaker other(37);
  const LoraWeights& lora = p.weights.lora;
  for (const Tensor& tensor : {lora.w1_a, lora.w1_b, lora.w2_a, lora.w2_b, lora.scaling}) {
    const Tensor fresh = other.normal(tensor.shape(), tensor.dtype(), 0.3f);
    copy(fresh, tensor, place.stream);
    place.stream.synchronize();
  }
  const Tensor after = valid_rows(p, run(*experts, p.input, stream_of(impl(), 2)));
  EXPECT_FALSE(same_bits(after, before));
  EXPECT_TRUE(same_bits(after, run_valid_rows(p, impl())));
}

TEST_P(ExpertsContract, LoraIdsAreChecked) {
  const ExpertCase c = with_adapters(base_case(), 2, 8, DType::kBF16);
  const ExpertProblem p = ExpertProblemMaker(38).make(kTiny, c);
  using testing::expect_mentions;
  const auto error = [&](const ExpertProblem& problem) {
    return testing::message_of(
        [&] { apply(*make(problem, impl(), 2), problem.input, stream_of(impl(), 2)); });
  };
  for (const int32_t bad : {2, -2}) {
    int32_t& id = p.input.lora_ids.data<int32_t>()[7];
    const int32_t good = std::exchange(id, bad);
    if (stream_of(impl(), 1).device().is_cuda()) {  // a GPU takes a bad id as no adapter
      const Tensor with_bad = run_valid_rows(p, impl());
      id = -1;
      EXPECT_TRUE(same_bits(with_bad, run_valid_rows(p, impl())));
      id = good;
      continue;
    }
    expect_mentions(error(p), {is_standard() ? "lora_ids[7]" : "lora_ids[0, 7]",
                               std::to_string(bad), "2 adapters"});
    id = good;
  }
  ExpertProblem wrong = p;
  wrong.input.lora_ids = Tensor::zeros({5}, DType::kI32);
  expect_mentions(error(wrong), {"lora_ids", "[5]", is_standard() ? "[33]" : "[6, 33]"});
  wrong.input.lora_ids = Tensor::zeros(p.input.lora_ids.shape(), DType::kI64);
  expect_mentions(error(wrong), {"lora_ids", "i64", "i32"});
  wrong = without_adapters(p);
  wrong.input.lora_ids = p.input.lora_ids;
  expect_mentions(error(wrong), {"lora_ids", "num_adapters is 0"});
}

}  // namespace moebius::experts_suite
