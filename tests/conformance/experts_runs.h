// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls an experts implementation on the device where it works, with poisoned buffers, and brings
// results to the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cpu_features.h"
#include "experts/weight_tensors.h"
#include "moebius/experts.h"
#include "problems/expert_problem.h"
#include "problems/gemm_tolerance.h"
#include "problems/place.h"

namespace moebius::experts_suite {

inline Tensor poisoned(const Shape& shape, DType dtype) {
  Tensor tensor = Tensor::empty(shape, dtype);
  std::memset(tensor.raw(), 0xff, static_cast<size_t>(tensor.nbytes()));  // NaN in every float
  return tensor;
}

// Whether this processor has the vectors of this name of MOEBIUS_CPU_VECTORS.
inline bool can_run_vectors(std::string_view vectors) {
  const CpuFeatures& has = cpu_features();
  return vectors == "vnni" ? has.avx512 && has.avx512_vnni : vectors == "plain" || has.avx2;
}

// A stream of the kind that the implementation works on.
inline Stream stream_of(std::string_view impl, int threads) {
  for (const ExpertsImpl& candidate : experts_impls()) {
    if (candidate.name == impl && candidate.device == DeviceType::kCuda) {
      return Stream::cuda(0);
    }
  }
  return Stream::cpu(threads);
}

inline ExpertWeights placed(ExpertWeights weights, const testing::Place& place) {
  for_each_tensor(weights, [&](Tensor& tensor, const auto&) { tensor = place.take(tensor); });
  return weights;
}

inline ExpertsInput placed(ExpertsInput input, const testing::Place& place) {
  for (Tensor* tensor :
       {&input.x, &input.x_scale, &input.topk_ids, &input.topk_weights, &input.expert_num_tokens,
        &input.expert_map, &input.lora_ids, &input.a2_scale}) {
    *tensor = place.take(*tensor);
  }
  return input;
}

// Makes experts from weights that are on the device where the implementation works.
inline std::unique_ptr<Experts> make(const ExpertProblem& p, std::string_view impl, int threads) {
  const testing::Place place(stream_of(impl, threads));
  return make_experts(p.desc, placed(p.weights, place), place.stream, impl);
}

// Calls apply() with everything that it may write or use filled with NaN.
inline Tensor apply(const Experts& experts, const ExpertsInput& input, const Stream& stream) {
  const int64_t rows = input.x.dim(experts.desc().format == ActivationFormat::kBatched ? 1 : 0);
  const ExpertsWorkspace ws = experts.workspace(rows);
  const testing::Place place(stream);
  const Tensor output = place.take(poisoned(ws.output, ws.dtype));
  const Tensor intermediate = place.take(poisoned(ws.intermediate, ws.dtype));
  const Tensor scratch = place.take(poisoned({ws.scratch_bytes}, DType::kU8));
  const ExpertsInput there = placed(input, place);
  experts.apply(there, output, intermediate, scratch, stream);
  stream.synchronize();
  return place.bring(output);
}

// Rows [M, ..] as [M * K, ..], each K times; a single scale of all rows stays.
inline Tensor repeated(const Tensor& rows, int64_t num_tokens, int64_t topk) {
  const bool is_of_all_rows = rows.num_dims() == 2 && rows.numel() == 1;
  if (!rows.defined() || is_of_all_rows || num_tokens == 0) {
    return rows;
  }
  const int64_t row_bytes = rows.nbytes() / num_tokens;
  const Tensor out = rows.num_dims() == 1
                         ? Tensor::empty({num_tokens * topk}, rows.dtype())
                         : Tensor::empty({num_tokens * topk, rows.dim(1)}, rows.dtype());
  for (int64_t i = 0; i < num_tokens * topk; ++i) {
    std::memcpy(out.bytes() + i * row_bytes, rows.bytes() + i / topk * row_bytes,
                static_cast<size_t>(row_bytes));
  }
  return out;
}

// Gives every selection a token of its own with weight 1, so that each sum is one row.
inline ExpertsInput one_selection_each(const ExpertsInput& input) {
  const int64_t num_tokens = input.topk_ids.dim(0);
  const int64_t topk = input.topk_ids.dim(1);
  const int64_t num_selections = num_tokens * topk;
  ExpertsInput out = input;
  out.x = repeated(input.x, num_tokens, topk);
  out.x_scale = repeated(input.x_scale, num_tokens, topk);
  out.lora_ids = repeated(input.lora_ids, num_tokens, topk);
  out.a2_scale = repeated(input.a2_scale, num_tokens, topk);
  out.topk_ids = Tensor::empty({num_selections, topk}, DType::kI32);
  out.topk_weights = Tensor::empty({num_selections, topk}, DType::kF32);
  std::fill_n(out.topk_ids.data<int32_t>(), out.topk_ids.numel(), -1);
  std::fill_n(out.topk_weights.data<float>(), out.topk_weights.numel(), 1.0f);
  for (int64_t i = 0; i < num_selections; ++i) {
    out.topk_ids.data<int32_t>()[i * topk + i % topk] = input.topk_ids.data<int32_t>()[i];
  }
  return out;
}

// Returns a row per selection, or per row of the batched format, whether or not the implementation
// weights and sums rows.
inline Tensor run(const Experts& experts, const ExpertsInput& input, const Stream& stream) {
  if (experts.traits().weight_and_reduce != WeightAndReduceKind::kNoOp) {
    return apply(experts, input, stream);
  }
  const Tensor rows = apply(experts, one_selection_each(input), stream);
  return rows.view({input.topk_ids.dim(0), input.topk_ids.dim(1), experts.desc().hidden});
}

inline Tensor run(const ExpertProblem& p, std::string_view implementation, int threads = 2) {
  return run(*make(p, implementation, threads), p.input, stream_of(implementation, threads));
}

// The rows of an output that are computed, one after the other.
inline Tensor valid_rows(const ExpertProblem& p, const Tensor& output) {
  if (p.desc.format == ActivationFormat::kStandard) {
    return output;
  }
  const int32_t* counts = p.input.expert_num_tokens.data<int32_t>();
  int64_t total = 0;
  for (int64_t e = 0; e < p.desc.num_local_experts; ++e) {
    total += counts[e];
  }
  const Tensor rows = Tensor::empty({total, p.desc.hidden}, output.dtype());
  int64_t next = 0;
  for (int64_t e = 0; e < p.desc.num_local_experts; ++e) {
    const Tensor from = output[e].slice(0, counts[e]);
    std::memcpy(rows.slice(next, next + counts[e]).raw(), from.raw(),
                static_cast<size_t>(from.nbytes()));
    next += counts[e];
  }
  return rows;
}

inline Tensor run_valid_rows(const ExpertProblem& p,
                             std::string_view implementation,
                             int threads = 2) {
  return valid_rows(p, run(p, implementation, threads));
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0;
}

// The same, but any NaN equals any other: a GPU makes other NaNs than a CPU.
inline bool same_numbers(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    return false;
  }
  for (int64_t i = 0; i < a.numel(); ++i) {
    const float x = get_float(a, i);
    const float y = get_float(b, i);
    const bool is_same = x == y && std::signbit(x) == std::signbit(y);
    if (!is_same && !(std::isnan(x) && std::isnan(y))) {
      return false;
    }
  }
  return true;
}

// Between `impl` and another implementation.
inline double tolerance_of(const ExpertProblem& p, const Scheme& scheme, std::string_view impl) {
  return tolerance(
      p.desc.in_dtype, scheme.activation, std::max(p.desc.hidden, p.desc.intermediate),
      differing_codes(stream_of(impl, 1).device().type, p.desc.in_dtype, scheme.activation,
                      scheme.weight, scheme.scales == WeightScales::kBlock));
}

// The rows that GEMM2 multiplies, computed by the same experts with the identity for w2.
// REQUIRES: int8 weights with a scale per tensor, hidden >= intermediate.
inline Tensor activations_of(ExpertProblem p) {
  QuantDesc& w2 = p.weights.quant.w2;
  p.weights.w2 = Tensor::zeros(p.weights.w2.shape(), DType::kI8);
  const int64_t num_experts = p.desc.num_local_experts;
  for (int64_t e = 0; e < num_experts; ++e) {
    for (int64_t i = 0; i < p.desc.intermediate; ++i) {
      p.weights.w2[e][i].data<int8_t>()[i] = 1;
    }
  }
  w2.scale = Tensor::empty({num_experts}, DType::kF32);
  std::fill_n(w2.scale.data<float>(), num_experts, 1.0f);
  w2.bias = {};
  if (p.weights.lora.w2_a) {
    p.weights.lora.w2_a = Tensor::zeros(p.weights.lora.w2_a.shape(), p.weights.lora.w2_a.dtype());
  }
  p.desc.precision = Precision::kF64;
  return run_valid_rows(p, "ref");
}

// The relative error of int8 codes with one scale for all rows (in the batched format, for all rows
// of an expert), for model_tolerance().  A step is 1/127 of the largest element under the scale.
// That element is 3.5 times the typical x, but 10 to 30 times the typical product of gate and up,
// depending on the draw of the largest among thousands.  So it is taken from the problem at hand.
// An error of step / sqrt(12) in each element passes GEMM2 as the element does, scaled by the
// expert's w2; an error of x passes both gate and up.  The errors of 400 draws were 0.6 to 0.94 of
// the result.
inline double int8_tensor_codes(const ExpertProblem& p) {
  const Tensor h = activations_of(p);
  const int64_t width = p.desc.intermediate;
  const bool batched = p.desc.format == ActivationFormat::kBatched;
  const auto num_experts = static_cast<size_t>(p.desc.num_local_experts);
  std::vector<double> largest(num_experts, 0), squares(num_experts, 0), count(num_experts, 0);
  const Tensor rows = h.view({h.numel() / p.desc.hidden, p.desc.hidden});
  size_t e = 0;
  int64_t end = batched ? p.input.expert_num_tokens.data<int32_t>()[0] : 0;
  for (int64_t row = 0; row < rows.dim(0); ++row) {
    if (!batched) {
      e = static_cast<size_t>(p.input.topk_ids.data<int32_t>()[row]);
    }
    while (batched && row == end) {
      end += p.input.expert_num_tokens.data<int32_t>()[++e];
    }
    for (int64_t i = 0; i < width; ++i) {
      const double value = get_float(rows[row], i);
      largest[e] = std::max(largest[e], std::fabs(value));
      squares[e] += value * value;
    }
    count[e] += static_cast<double>(width);
  }
  if (!batched) {
    std::fill(largest.begin(), largest.end(), *std::max_element(largest.begin(), largest.end()));
  }
  double noise = 0;
  double signal = 0;
  for (e = 0; e < num_experts; ++e) {
    const double w2 = get_float(p.weights.quant.w2.scale, static_cast<int64_t>(e));
    noise += w2 * w2 * count[e] * largest[e] * largest[e];
    signal += w2 * w2 * squares[e];
  }
  constexpr double kLargestX = 3.5;  // of the bell curve of ExpertProblemMaker, whose variance is 1
  return std::sqrt((2 * kLargestX * kLargestX + noise / signal) / 12) / 127;
}

// Whether the scheme is the only one whose model tolerance depends on the draw.
inline bool has_int8_tensor_codes(const Scheme& scheme) {
  return scheme.activation == QuantFormat::kInt8 && scheme.scales == WeightScales::kTensor;
}

// The model_tolerance() of the scheme with this problem.
inline double model_tolerance_of(const ExpertProblem& p, const Scheme& scheme) {
  return model_tolerance(
      p.desc.in_dtype, scheme.activation, p.desc.hidden,
      has_int8_tensor_codes(scheme) ? std::optional(int8_tensor_codes(p)) : std::nullopt);
}

// The same problem without any adapter.
inline ExpertProblem without_adapters(ExpertProblem p) {
  p.desc.num_adapters = p.desc.lora_rank = 0;
  p.weights.lora = {};
  p.input.lora_ids = {};
  return p;
}

// The adapter of every row of valid_rows(), which are seen as [.., H].
inline std::vector<int32_t> adapters_of_rows(const ExpertProblem& p) {
  std::vector<int32_t> adapters;
  const Tensor& ids = p.input.lora_ids;
  for (int64_t i = 0; i < ids.dim(0); ++i) {
    const bool batched = p.desc.format == ActivationFormat::kBatched;
    const int64_t rows =
        batched ? p.input.expert_num_tokens.data<int32_t>()[i] : p.input.topk_ids.dim(1);
    for (int64_t r = 0; r < rows; ++r) {
      adapters.push_back(batched ? ids[i].data<int32_t>()[r] : ids.data<int32_t>()[i]);
    }
  }
  return adapters;
}

}  // namespace moebius::experts_suite
