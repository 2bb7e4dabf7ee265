// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/streams.h"

#include "c_api/convert.h"
#include "c_api/status.h"
#include "core/cuda/runtime.h"

namespace moebius::c_api {

Stream read_stream(moebius_stream stream) {
  return stream == nullptr ? Stream() : find<StreamObject>(stream)->stream;
}

namespace {

void give(moebius_stream* out, const auto& make) {
  moebius_stream& place = expect_out(out, "stream");
  place = make_handle(std::make_shared<StreamObject>(make()));
}

}  // namespace

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_stream_cpu(int32_t num_threads, moebius_stream* stream) {
  return guarded([&] { give(stream, [&] { return Stream::cpu(num_threads); }); });
}

moebius_status moebius_stream_cuda(int32_t index, moebius_stream* stream) {
  return guarded([&] { give(stream, [&] { return Stream::cuda(read_cuda_index(index)); }); });
}

moebius_status moebius_stream_wrap_cuda(void* cuda_stream, int32_t index, moebius_stream* stream) {
  return guarded([&] {
    give(stream, [&] { return Stream::wrap_cuda(cuda_stream, read_cuda_index(index)); });
  });
}

moebius_status moebius_stream_synchronize(moebius_stream stream) {
  return guarded([&] { read_stream(stream).synchronize(); });
}

moebius_status moebius_stream_capture_id(moebius_stream stream, uint64_t* id) {
  return giving(id, "id", [&] {
    const Stream on = read_stream(stream);
    const Device device = on.device();
    return device.is_cuda() ? cuda::capture_id(on.native_handle(), device.index) : 0;
  });
}

moebius_status moebius_stream_get_cuda(moebius_stream stream, void** cuda_stream) {
  return giving(cuda_stream, "cuda_stream", [&] { return read_stream(stream).native_handle(); });
}

moebius_status moebius_stream_destroy(moebius_stream stream) {
  return guarded([&] { destroy_handle<StreamObject>(stream); });
}

moebius_status moebius_stream_wait_stream(moebius_stream stream, moebius_stream other) {
  return guarded([&] {
    const Stream on = read_stream(stream);
    on.wait(read_stream(other).record());
  });
}

moebius_status moebius_stream_record(moebius_stream stream, moebius_event* event) {
  return giving(event, "event",
                [&] { return make_handle(std::make_shared<EventObject>(read_stream(stream))); });
}

moebius_status moebius_stream_wait(moebius_stream stream, moebius_event event) {
  return guarded([&] {
    const Stream on = read_stream(stream);
    on.wait(find<EventObject>(event)->event);
  });
}

moebius_status moebius_event_is_complete(moebius_event event, int32_t* is_complete) {
  return giving(is_complete, "is_complete", [&] {
    const auto asked = find<EventObject>(event);
    return !asked->is_captured && asked->event.is_complete() ? 1 : 0;
  });
}

moebius_status moebius_event_destroy(moebius_event event) {
  return guarded([&] { destroy_handle<EventObject>(event); });
}
