// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/activation.h"

#include <fmt/format.h>

#include "core/same_device.h"
#include "experts/cuda/activation/activation.h"
#include "experts/validate.h"

namespace moebius {

void apply_activation(const ActivationSpec& spec,
                      const Tensor& input,
                      const Tensor& output,
                      const Stream& stream) {
  validate_activation(spec);
  expect_defined(input, "input");
  expect_defined(output, "output");
  expect_eq(input.num_dims(), 2, "number of dimensions of input");
  const DType dtype = input.dtype();
  expect(is_float(dtype),
         [&] { return fmt::format("input is {}, expected f32, bf16 or f16", name(dtype)); });
  expect_dtype(output, dtype, "output");
  const int64_t factor = spec.gated ? 2 : 1;
  expect_multiple_of(input.dim(1), factor, "input.dim(1)");
  expect_shape(output, {input.dim(0), input.dim(1) / factor}, "output");
  expect_on(output, input.device(), "output");
  expect_writable(output, "output");
  expect_eq(to_string(stream.device()), to_string(input.device()), "device of the stream");
  if (input.device().is_cuda()) {
    cuda::activate(spec, cuda::RowGroups::all(input.dim(0)), input, output, stream);
  } else {
    cpu::activate_rows(spec, input, output, stream);
  }
}

}  // namespace moebius
