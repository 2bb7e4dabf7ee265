// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CUDA and DLPack: calls on a stream that another library owns, with tensors of that library in and
// out.  The other library is played by a few lines below.  Without a GPU the part about streams is
// skipped, and the tensors are on the CPU.
#include <cstdio>

#include "moebius/allocator.h"
#include "moebius/dlpack.h"
#include "moebius/quantize.h"

using namespace moebius;

namespace {

// The other library: it hands out tensors through DLPack, and has a stream on a GPU.
struct Engine {
  Device device;
  Stream stream;

  static Engine make() {
    if (cuda_device_count() == 0) {
      std::printf("skipped: streams and events, since there is no GPU\n");
      return {Device::cpu(), Stream::cpu()};
    }
    expect_usable(Device::cuda(0));
    return {Device::cuda(0), Stream::cuda(0)};
  }
  DLManagedTensorVersioned* make_tensor(float value) const {
    Tensor tensor = Tensor::empty({4, 256}, DType::kF32);
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      set_float(tensor, i, value + static_cast<float>(i % 7));
    }
    const Tensor there = to_device(tensor, device, stream);
    tensor.record_stream(stream);  // the host's memory stays until the copy is done
    return to_dlpack_versioned(there);
  }
};

float first_of(const Tensor& tensor, const Stream& stream) {
  return get_float(to_device(tensor, Device::cpu(), stream), 0);
}

}  // namespace

int main() {
  const Engine engine = Engine::make();
  const bool has_gpu = engine.device.is_cuda();
  // The stream stays the engine's.  It must outlive every handle that we make of it.
  const Stream stream = has_gpu
                            ? Stream::wrap_cuda(engine.stream.native_handle(), engine.device.index)
                            : engine.stream;

  // In: from now on the engine's tensor is kept alive by x, which nothing has copied.
  Tensor x = from_dlpack(engine.make_tensor(1.0f));
  const Tensor y = from_dlpack(engine.make_tensor(0.0f));

  if (has_gpu) {  // The engine says by an event of its own when x may be read.
    const Event ready = engine.stream.record();
    stream.wait(Event::wrap_cuda(ready.native_handle(), engine.device.index));
  }
  // Out of y comes what a cast of x to fp8 and back leaves.
  const QuantizeSpec spec{QuantFormat::kFp8, GroupShape{1, 128}};
  Quantized codes = quantize(x, spec, stream);
  dequantize(codes, spec, y, stream);

  // A handle may go at any time, although the stream still reads: it says so itself.
  x.record_stream(stream);
  x = Tensor();
  codes.values.record_stream(stream);
  codes.scale.record_stream(stream);
  codes = Quantized();

  // Out: the codes of 8 bits travel with their type, and y goes back to the engine.
  const Tensor fp8 = Tensor::zeros({2, 128}, DType::kF8E4M3, engine.device);
  const Tensor same = from_dlpack(to_dlpack_versioned(fp8.as_read_only()));
  if (same.dtype() != DType::kF8E4M3 || same.raw() != fp8.raw() || !same.is_read_only()) {
    std::printf("fp8 did not come back as it went\n");
    return 1;
  }
  const Tensor result = from_dlpack(to_dlpack(y));
  const float value = first_of(result, stream);
  std::printf("y[0, 0] = %g on %s, %lld bytes allocated\n", static_cast<double>(value),
              to_string(engine.device).c_str(),
              static_cast<long long>(memory_statistics(engine.device).bytes));
  return value > 0.9f && value < 1.1f ? 0 : 1;
}
