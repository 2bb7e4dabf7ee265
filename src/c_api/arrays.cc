// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/arrays.h"

#include <span>
#include <utility>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "c_api/streams.h"
#include "core/dlpack_abi.h"
#include "moebius/dlpack.h"

namespace moebius::c_api {

moebius_array make_array(const Tensor& tensor) {
  return tensor ? make_handle(std::make_shared<ArrayObject>(tensor)) : nullptr;
}

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

const char* moebius_dtype_name(int32_t dtype) {
  // The names are literals.
  return dtype >= 0 && dtype < kNumDTypes ? name(static_cast<DType>(dtype)).data() : nullptr;
}

int32_t moebius_dtype_bits(int32_t dtype) {
  return dtype >= 0 && dtype < kNumDTypes ? bits(static_cast<DType>(dtype)) : 0;
}

moebius_status moebius_array_empty(int32_t dtype,
                                   moebius_device device,
                                   int32_t num_dims,
                                   const int64_t* shape,
                                   moebius_array* array) {
  return giving(array, "array", [&] {
    expect_ge(num_dims, 0, "num_dims");
    expect(shape != nullptr || num_dims == 0, "shape is null");
    return make_array(Tensor::empty(Shape(std::span(shape, static_cast<size_t>(num_dims))),
                                    read_dtype(dtype, "array"), read_device(device)));
  });
}

moebius_status moebius_array_view(moebius_array array, moebius_tensor* tensor) {
  return guarded([&] { write_tensor(tensor, "tensor", find<ArrayObject>(array)->tensor); });
}

moebius_status moebius_array_record_stream(moebius_array array, moebius_stream stream) {
  return guarded([&] {
    const Using<ArrayObject> used(array);
    used->tensor.record_stream(read_stream(stream));
  });
}

moebius_status moebius_array_destroy(moebius_array array) {
  return guarded([&] { destroy_handle<ArrayObject>(array); });
}

moebius_status moebius_array_from_dlpack(void* managed,
                                         int32_t is_versioned,
                                         int32_t as_dtype,
                                         moebius_array* array) {
  return guarded([&] {
    const auto import = [&](auto* typed) {
      // The producer's deleter is called in any case.
      struct Owner {
        decltype(typed) managed;
        ~Owner() {
          if (managed != nullptr && managed->deleter != nullptr) {
            managed->deleter(managed);
          }
        }
      } owner{typed};
      moebius_array& place = expect_out(array, "array");
      DLPackImport how;
      if (as_dtype != -1) {
        how.as = read_dtype(as_dtype, "array");
      }
      place = make_array(from_dlpack(std::exchange(owner.managed, nullptr), how));
    };
    if (read_flag(is_versioned, "is_versioned")) {
      import(static_cast<DLManagedTensorVersioned*>(managed));
    } else {
      import(static_cast<DLManagedTensor*>(managed));
    }
  });
}

moebius_status moebius_array_to_dlpack(moebius_array array, int32_t is_versioned, void** managed) {
  return guarded([&] {
    void*& place = expect_out(managed, "managed");
    const Tensor& tensor = find<ArrayObject>(array)->tensor;
    if (read_flag(is_versioned, "is_versioned")) {
      place = to_dlpack_versioned(tensor);
    } else {
      place = to_dlpack(tensor);
    }
  });
}

moebius_status moebius_copy(const moebius_tensor* from,
                            const moebius_tensor* to,
                            moebius_stream stream) {
  return guarded_on(stream, [&](const Stream& on) {
    const Tensor source = read_tensor(from, "from", on);
    const Tensor target = read_tensor(to, "to", on);
    expect(source.device() != target.device() || source.nbytes() == 0 ||
               source.bytes() + source.nbytes() <= target.bytes() ||
               target.bytes() + target.nbytes() <= source.bytes(),
           "from and to overlap");
    copy(source, target, on);
  });
}
