// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/quantize.h"

#include <array>
#include <utility>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "c_api/streams.h"
#include "c_api/structs.h"

namespace moebius::c_api {

namespace {

QuantizeSpec read_spec(const moebius_quant_spec* given) {
  const moebius_quant_spec spec = read_struct(given, "spec");
  return {.format = read_format(spec.format, "format of the spec"),
          .group = {spec.group_rows, spec.group_cols},
          .power_of_two_scale = read_flag(spec.power_of_two_scale, "power_of_two_scale"),
          .asymmetric = read_flag(spec.asymmetric, "asymmetric"),
          .global_scale_per_row = read_flag(spec.global_scale_per_row, "global_scale_per_row")};
}

Quantized read_quantized(const moebius_quantized* given, const Stream& stream) {
  const moebius_quantized q = read_struct(given, "quantized");
  return {.values = read_tensor(q.values, "values", stream),
          .scale = read_tensor(q.scale, "scale", stream),
          .zero_point = read_optional_tensor(q.zero_point, "zero_point", stream),
          .global_scale = read_optional_tensor(q.global_scale, "global_scale", stream)};
}

}  // namespace

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_quantized_shapes(const moebius_quant_spec* spec,
                                        int64_t rows,
                                        int64_t cols,
                                        moebius_device device,
                                        const moebius_quantized* out) {
  return guarded([&] {
    const moebius_quantized places = read_struct(out, "out");
    const std::array outs = {places.values, places.scale, places.zero_point, places.global_scale};
    for (const moebius_tensor* place : outs) {
      read_optional(place, "tensor of out");
    }
    const Device where = read_device(device, "device");
    const Quantized q = allocate_quantized(read_spec(spec), rows, cols);
    const std::array tensors = {q.values, q.scale, q.zero_point, q.global_scale};
    for (size_t i = 0; i < outs.size(); ++i) {
      if (outs[i] != nullptr && tensors[i]) {
        write_shape(outs[i], tensors[i]);
        outs[i]->device = device_of(where);
      } else if (outs[i] != nullptr) {
        outs[i]->num_dims = -1;
      }
    }
  });
}

moebius_status moebius_quantize(const moebius_tensor* x,
                                const moebius_quant_spec* spec,
                                const moebius_quantized* out,
                                const moebius_tensor* static_scale,
                                const moebius_tensor* global_scale,
                                moebius_stream stream) {
  return guarded([&] {
    const Stream on = read_stream(stream);
    Quantized q = read_quantized(out, on);
    for (const Tensor& tensor : {q.values, q.scale, q.zero_point, q.global_scale}) {
      expect_writable(tensor, "tensor of out");
    }
    quantize(read_tensor(x, "x", on), read_spec(spec), q, on,
             read_optional_tensor(static_scale, "static_scale", on),
             read_optional_tensor(global_scale, "global_scale", on));
  });
}

moebius_status moebius_dequantize(const moebius_quantized* q,
                                  const moebius_quant_spec* spec,
                                  const moebius_tensor* out,
                                  moebius_stream stream) {
  return guarded([&] {
    const Stream on = read_stream(stream);
    dequantize(read_quantized(q, on), read_spec(spec), read_tensor(out, "out", on), on);
  });
}
