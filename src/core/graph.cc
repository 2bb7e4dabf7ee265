// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/graph.h"

#include "core/cuda/runtime.h"
#include "moebius/error.h"

namespace moebius {

Graph::Graph(const Stream& stream, const std::function<void()>& work) : stream_(stream) {
  if (stream.device().is_cpu()) {
    throw Unsupported("graphs are of GPUs, this stream is of the cpu");
  }
  executable_ = cuda::capture(stream.native_handle(), stream.device().index, work);
}

void Graph::launch() const {
  launch(stream_);
}

void Graph::launch(const Stream& stream) const {
  if (stream.device() != stream_.device()) {
    expect_eq(to_string(stream.device()), to_string(stream_.device()), "device of the stream");
  }
  cuda::launch_graph(executable_.get(), stream.native_handle(), stream.device().index);
}

}  // namespace moebius
