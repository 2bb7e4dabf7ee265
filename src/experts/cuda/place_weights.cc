// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/place_weights.h"

namespace moebius::cuda {

ExpertWeights place_weights(ExpertWeights weights, const Stream& stream) {
  const Device device = stream.device();
  const auto place = [&](Tensor& tensor) {
    tensor = tensor ? to_device(tensor, device, stream) : tensor;
  };
  const auto place_bias = [&](Tensor& bias) {
    if (bias && bias.dtype() != DType::kF32) {
      bias = convert(to_device(bias, Device::cpu(), stream), DType::kF32);
      bias = to_device(bias, device, stream);
      stream.synchronize();  // the host's copy goes
    }
    place(bias);
  };
  const ExpertWeights originals = weights;  // kept until they are copied
  place(weights.w1);
  place(weights.w2);
  QuantConfig& quant = weights.quant;
  for (QuantDesc* desc : {&quant.a1, &quant.a2, &quant.w1, &quant.w2}) {
    place(desc->scale);
    place(desc->alpha_or_gscale);
    place(desc->zero_point);
    place_bias(desc->bias);
  }
  LoraWeights& lora = weights.lora;
  for (Tensor* tensor : {&lora.w1_a, &lora.w1_b, &lora.w2_a, &lora.w2_b, &lora.scaling}) {
    place(*tensor);
  }
  stream.synchronize();
  return weights;
}

}  // namespace moebius::cuda
