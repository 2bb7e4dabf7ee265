// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/weight_memory.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "core/given_tensors.h"
#include "core/same_device.h"
#include "experts/validate.h"
#include "experts/weight_tensors.h"

namespace moebius {

namespace {

std::vector<Tensor> tensors_of(const ExpertWeights& weights) {
  std::vector<Tensor> all;
  for_each_tensor(weights, [&](const Tensor& tensor, const auto&) { all.push_back(tensor); });
  return all;
}

QuantDesc without_tensors(const QuantDesc& desc) {
  QuantDesc scheme;
  scheme.format = desc.format;
  scheme.shape = desc.shape;
  scheme.power_of_two_scale = desc.power_of_two_scale;
  scheme.calls_bring_scales = desc.calls_bring_scales;
  return scheme;
}

std::string to_string(const QuantDesc& scheme) {
  if (!scheme.format) {
    return "not quantized";
  }
  const GroupShape shape = scheme.shape.value_or(GroupShape{});
  return fmt::format("{} by {{{}, {}}}{}{}", name(*scheme.format), shape.row, shape.col,
                     scheme.power_of_two_scale ? " with powers of two" : "",
                     scheme.calls_bring_scales ? " with scales that calls bring" : "");
}

void expect_scheme(const QuantDesc& given, const QuantDesc& expected, std::string_view what) {
  const bool is_equal = given.format == expected.format && given.shape == expected.shape &&
                        given.power_of_two_scale == expected.power_of_two_scale &&
                        given.calls_bring_scales == expected.calls_bring_scales;
  expect(is_equal, [&] {
    return fmt::format("{} is {}, expected {} as the weights that are replaced", what,
                       to_string(given), to_string(expected));
  });
}

// Compares the tensors of an update, in their order, with those that are remembered.
class Comparison {
 public:
  Comparison(const std::vector<Tensor>& remembered, const ExpertsDesc& desc, Device device)
      : next_(remembered.begin()),
        is_lent_(desc.weight_memory == WeightMemory::kLent),
        device_(device) {}

  // is_left_out: the tensor may not be given.
  void expect_fits(const Tensor& tensor, std::string_view what, bool is_left_out) {
    const Tensor& old = *next_++;
    if (is_left_out) {
      expect(!tensor, [&] { return fmt::format("{} is given without its weight", what); });
      return;
    }
    expect_like(tensor, old, what);
    if (!tensor) {
      return;
    }
    if (!tensor.device().is_cpu()) {
      expect_on(tensor, device_, what);
    }
    expect(!is_lent_ || tensor.raw() == old.raw(), [&] {
      return fmt::format("{} is at {}, expected {} where it was lent", what, tensor.raw(),
                         old.raw());
    });
  }

 private:
  std::vector<Tensor>::const_iterator next_;
  bool is_lent_;
  Device device_;
};

}  // namespace

ExpertWeights own_constants(ExpertWeights weights, const ExpertsDesc& desc, const Stream&) {
  if (desc.weight_memory == WeightMemory::kLent) {
    return weights;
  }
  const auto take = [](Tensor& tensor, const auto&) { tensor = own(std::move(tensor)); };
  for (const auto& side : sides_of(weights)) {
    for_each_row_tensor(side, take);
  }
  for_each_lora_tensor(weights.lora, take);
  return weights;
}

ExpertWeights own_weights(ExpertWeights weights, const ExpertsDesc& desc, const Stream&) {
  if (desc.weight_memory == WeightMemory::kLent) {
    return weights;
  }
  for_each_tensor(weights, [](Tensor& tensor, const auto&) { tensor = own(std::move(tensor)); });
  return weights;
}

GivenWeights::GivenWeights(const ExpertWeights& weights) {
  for_each_tensor(weights,
                  [&](const Tensor& tensor, const auto&) { tensors_.push_back(facts_of(tensor)); });
  const QuantConfig& quant = weights.quant;
  scheme_.a1 = without_tensors(quant.a1);
  scheme_.a2 = without_tensors(quant.a2);
  scheme_.w1 = without_tensors(quant.w1);
  scheme_.w2 = without_tensors(quant.w2);
}

void GivenWeights::expect_update(const ExpertsDesc& desc,
                                 const ExpertWeights& weights,
                                 Device device) const {
  Comparison comparison(tensors_, desc, device);
  const QuantDesc* schemes[][2] = {{&scheme_.w1, &scheme_.a1}, {&scheme_.w2, &scheme_.a2}};
  for (size_t i = 0; const auto& side : sides_of(weights)) {
    const auto& [weight_scheme, row_scheme] = schemes[i++];
    const bool is_left_out = !side.w;
    if (!is_left_out) {
      expect_scheme(side.quant, *weight_scheme, side.name);
      expect_scheme(side.rows, *row_scheme, side.rows_name);
    }
    const auto compare = [&](const Tensor& tensor, std::string_view what) {
      comparison.expect_fits(tensor, what, is_left_out);
    };
    for_each_weight_tensor(side, compare);
    for_each_row_tensor(side, compare);
    if (!is_left_out) {
      validate_side(desc, weights, side.name);
    }
  }
  const bool has_lora = weights.lora.defined();
  for_each_lora_tensor(weights.lora, [&](const Tensor& tensor, std::string_view what) {
    comparison.expect_fits(tensor, what, !has_lora);
  });
}

void copy_values(const ExpertWeights& from, const ExpertWeights& to, const Stream& stream) {
  const std::vector<Tensor> sources = tensors_of(from);
  const std::vector<Tensor> targets = tensors_of(to);
  std::vector<Tensor> converted;  // kept until they have been read
  bool leaves_host = false;
  for (size_t i = 0; i < sources.size(); ++i) {
    const Tensor& target = targets[i];
    Tensor source = sources[i];
    if (!source || !target || source.raw() == target.raw()) {
      continue;
    }
    if (source.dtype() != target.dtype()) {
      source = convert(to_device(source, Device::cpu(), stream), target.dtype());
      converted.push_back(source);
    }
    copy(source, target, stream);
    leaves_host = leaves_host || source.device() != target.device();
  }
  if (leaves_host) {
    stream.synchronize();
  }
}

}  // namespace moebius
