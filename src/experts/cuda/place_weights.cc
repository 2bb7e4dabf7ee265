// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/place_weights.h"

#include <utility>
#include <vector>

#include "core/given_tensors.h"
#include "experts/weight_tensors.h"

namespace moebius::cuda {

ExpertWeights place_weights(ExpertWeights weights, const ExpertsDesc& desc, const Stream& stream) {
  const Device device = stream.device();
  std::vector<Tensor> originals;  // kept until they are copied
  for (QuantDesc* of : {&weights.quant.w1, &weights.quant.w2}) {
    if (of->bias && of->bias.dtype() != DType::kF32) {
      of->bias = convert(to_device(of->bias, Device::cpu(), stream), DType::kF32);
    }
  }
  for_each_tensor(weights, [&](Tensor& tensor, const auto&) {
    if (tensor && tensor.device() != device) {
      originals.push_back(tensor);
      tensor = to_device(tensor, device, stream);
    } else if (desc.weight_memory == WeightMemory::kOwned) {
      tensor = own(std::move(tensor));
    }
  });
  stream.synchronize();
  return weights;
}

}  // namespace moebius::cuda
