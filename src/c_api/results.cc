// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/results.h"

#include <memory>
#include <string_view>
#include <vector>

#include "c_api/arrays.h"
#include "c_api/convert.h"
#include "c_api/status.h"
#include "c_api/streams.h"
#include "core/dlpack_abi.h"
#include "moebius/dlpack.h"

namespace moebius::c_api {

namespace {

struct DropManaged {
  void operator()(DLManagedTensor* tensor) const { tensor->deleter(tensor); }
};
using ManagedTensor = std::unique_ptr<DLManagedTensor, DropManaged>;

void expect_array_name(const char* name, int32_t index) {
  expect(name != nullptr, "name is null, expected a text");
  expect_ge(index, 0, "index");
}

}  // namespace

WantedArrays::WantedArrays(const moebius_dlpack_arrays* given, const Stream& user)
    : given_(read_struct(given, "arrays")),
      user_(given_.user == nullptr ? user : read_stream(given_.user)) {
  expect_ge(given_.num_arrays, 1, "num_arrays");
  expect_out(given_.managed, "managed");
  expect(given_.names != nullptr && given_.indices != nullptr,
         "names or indices are null, expected one of each array");
  for (size_t i = 0; i < size(); ++i) {
    expect_array_name(given_.names[i], given_.indices[i]);
  }
}

void WantedArrays::expect_payloads(int32_t num_payloads) const {
  for (size_t i = 0; i < size(); ++i) {
    if (std::string_view(given_.names[i]) == "payload") {
      expect_le(given_.indices[i], num_payloads - 1, "index of the payload");
    }
  }
}

void WantedArrays::give(const ResultObject& result) const {
  std::vector<ManagedTensor> made(size());
  for (size_t i = 0; i < made.size(); ++i) {
    if (Tensor array = result.array(given_.names[i], given_.indices[i])) {
      array.record_stream(user_);
      made[i].reset(to_dlpack(array));
    }
  }
  for (size_t i = 0; i < made.size(); ++i) {
    given_.managed[i] = made[i].release();
  }
}

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_result_array(moebius_result result,
                                    const char* name,
                                    int32_t index,
                                    moebius_array* array) {
  return giving(array, "array", [&] {
    expect_array_name(name, index);
    return make_array(Using<ResultObject>(result)->array(name, index));
  });
}

moebius_status moebius_result_dlpack(moebius_result result, const moebius_dlpack_arrays* arrays) {
  return guarded([&] {
    const WantedArrays wanted(arrays, read_stream(nullptr));
    wanted.give(*Using<ResultObject>(result));
  });
}

moebius_status moebius_result_wait(moebius_result result, moebius_stream stream) {
  return guarded([&] { read_stream(stream).wait(Using<ResultObject>(result)->event()); });
}

moebius_status moebius_result_event(moebius_result result, void** cuda_event) {
  return guarded([&] {
    void*& place = expect_out(cuda_event, "cuda_event");
    place = Using<ResultObject>(result)->event().native_handle();
  });
}

moebius_status moebius_result_destroy(moebius_result result) {
  return guarded([&] { destroy_handle<ResultObject>(result); });
}

moebius_status moebius_pending_hook(moebius_pending pending) {
  return guarded([&] { Using<PendingObject>(pending)->hook(); });
}

moebius_status moebius_pending_finish(moebius_pending pending, moebius_result* result) {
  return giving(result, "result", [&] {
    const Using<PendingObject> used(pending);
    return make_handle(used->finish());
  });
}

moebius_status moebius_pending_take(moebius_pending pending, moebius_result* result) {
  return guarded([&] {
    const Using<PendingObject> used(pending);
    remove_handle<PendingObject>(pending);  // the object ends with this call
    if (result == nullptr) {
      used->finish_without_result();
    } else {
      *result = make_handle(used->finish());
    }
  });
}

moebius_status moebius_pending_destroy(moebius_pending pending) {
  return guarded([&] { destroy_handle<PendingObject>(pending); });
}
