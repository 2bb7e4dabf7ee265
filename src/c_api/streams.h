// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the C API.
#pragma once

#include <string_view>

#include "c_api/handles.h"
#include "c_api/status.h"
#include "core/is_captured.h"
#include "moebius/stream.h"

namespace moebius::c_api {

struct StreamObject : Object {
  static constexpr std::string_view kKind = "stream";
  using Handle = moebius_stream;

  explicit StreamObject(Stream s) : stream(std::move(s)) {}
  Stream stream;
};

// An event that nobody records again, so that any thread may use it at any time.
struct EventObject : Object {
  static constexpr std::string_view kKind = "event";
  using Handle = moebius_event;

  explicit EventObject(const Stream& stream)
      : event(stream.record()), is_captured(moebius::is_captured(stream)) {}
  const Event event;
  const bool is_captured;  // it stands for a node of a graph then, and must not be queried
};

// The stream of a call; null is a CPU stream.
Stream read_stream(moebius_stream stream);

// As guarded(), for a function that works on a stream.
template <typename Body>
moebius_status guarded_on(moebius_stream stream, const Body& body) noexcept {
  return guarded([&] { body(read_stream(stream)); });
}

}  // namespace moebius::c_api
