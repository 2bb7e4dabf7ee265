// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/place_weights.h"

#include "experts/weight_tensors.h"

namespace moebius::cuda {

ExpertWeights place_weights(ExpertWeights weights, const Stream& stream) {
  const Device device = stream.device();
  for (QuantDesc* desc : {&weights.quant.w1, &weights.quant.w2}) {
    if (desc->bias && desc->bias.dtype() != DType::kF32) {
      desc->bias = convert(to_device(desc->bias, Device::cpu(), stream), DType::kF32);
    }
  }
  const ExpertWeights originals = weights;  // kept until they are copied
  for_each_tensor(weights, [&](Tensor& tensor, const auto&) {
    tensor = tensor ? to_device(tensor, device, stream) : tensor;
  });
  stream.synchronize();
  return weights;
}

}  // namespace moebius::cuda
