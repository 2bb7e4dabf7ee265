// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/layer/tensors.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace moebius::testing {

Tensor filled(const Shape& shape, DType dtype, const std::vector<float>& values) {
  const Tensor tensor = Tensor::empty(shape, dtype);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    set_float(tensor, i, values[static_cast<size_t>(i) % values.size()]);
  }
  return tensor;
}

Tensor random_tensor(const Shape& shape, DType dtype, int64_t seed, float scale) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  const Tensor tensor = Tensor::empty(shape, dtype);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const float unit = static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f;  // [-1, 1)
    set_float(tensor, i, unit * scale);
  }
  return tensor;
}

Tensor random_ids(int64_t num_tokens, int64_t topk, int64_t num_experts, int64_t seed) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  const Tensor ids = Tensor::empty({num_tokens, topk}, DType::kI32);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const auto first = static_cast<int64_t>(generator() % static_cast<uint32_t>(num_experts));
    for (int64_t k = 0; k < topk; ++k) {
      ids.data<int32_t>()[t * topk + k] =
          static_cast<int32_t>((first + k * (num_experts - 1)) % num_experts);
    }
  }
  return ids;
}

Tensor ids_of(const Shape& shape, const std::vector<int32_t>& values) {
  const Tensor ids = Tensor::empty(shape, DType::kI32);
  std::memcpy(ids.raw(), values.data(), values.size() * sizeof(int32_t));
  return ids;
}

std::vector<float> floats(const Tensor& tensor) {
  std::vector<float> values;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    values.push_back(get_float(tensor, i));
  }
  return values;
}

std::vector<int32_t> ints(const Tensor& tensor) {
  const auto* data = tensor.data<int32_t>();
  return {data, data + tensor.numel()};
}

void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(to_string(a.shape()), to_string(b.shape()));
  ASSERT_EQ(name(a.dtype()), name(b.dtype()));
  EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())), 0);
}

std::vector<std::string> stage_names(const Profile& profile) {
  std::vector<std::string> names;
  for (const Profile::Stage& stage : profile.stages()) {
    names.push_back(stage.name);
  }
  return names;
}

QuantTensors weight_scales(int64_t num_experts) {
  QuantTensors tensors;
  tensors.w1_scale = filled({num_experts}, DType::kF32, {1});
  tensors.w2_scale = tensors.w1_scale;
  return tensors;
}

void poison(const Tensor& tensor) {
  std::memset(tensor.raw(), 0xff, static_cast<size_t>(tensor.nbytes()));
}

}  // namespace moebius::testing
