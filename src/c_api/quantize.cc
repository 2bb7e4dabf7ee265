// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/quantize.h"

#include <array>
#include <string_view>
#include <utility>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "c_api/streams.h"
#include "c_api/structs.h"
#include "quant/groups.h"

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
    const std::array places_and_tensors = {
        std::pair(places.values, &Quantized::values), std::pair(places.scale, &Quantized::scale),
        std::pair(places.zero_point, &Quantized::zero_point),
        std::pair(places.global_scale, &Quantized::global_scale)};
    for (const auto& [place, tensor] : places_and_tensors) {
      read_optional(place, "tensor of out");
    }
    const Device where = read_device(device);
    const QuantizeSpec how = read_spec(spec);
    const Support support = quantize_supported(how, rows, cols);
    expect(support.ok, support.reason);
    expect_le(Shape{rows, cols}.numel(), int64_t{1} << 60, "elements of the matrix");
    for (const auto& [place, tensor] : places_and_tensors) {
      if (place != nullptr) {
        place->num_dims = -1;
      }
      quant::for_each_tensor(how, rows, cols,
                             [&](auto made, const Shape& shape, DType dtype, std::string_view) {
                               if (place != nullptr && made == tensor) {
                                 write_shape(place, shape, dtype, where);
                               }
                             });
    }
  });
}

moebius_status moebius_quantize(const moebius_tensor* x,
                                const moebius_quant_spec* spec,
                                const moebius_quantized* out,
                                const moebius_tensor* static_scale,
                                const moebius_tensor* global_scale,
                                moebius_stream stream) {
  return guarded_on(stream, [&](const Stream& on) {
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
  return guarded_on(stream, [&](const Stream& on) {
    dequantize(read_quantized(q, on), read_spec(spec), read_tensor(out, "out", on), on);
  });
}
