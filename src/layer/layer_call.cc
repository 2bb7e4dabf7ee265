// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/layer_call.h"

#include <exception>
#include <utility>

#include "layer/call_state.h"

namespace moebius {

LayerCall::State::~State() {
  if (has_begun && task.is_under_way() && tell_peers && std::uncaught_exceptions() == 0) {
    tell_peers("it has dropped a layer call before its end");
  }
}

LayerCall::LayerCall() = default;
LayerCall::LayerCall(std::unique_ptr<State> state) : state_(std::move(state)) {}
LayerCall::LayerCall(LayerCall&& other) noexcept = default;
LayerCall& LayerCall::operator=(LayerCall&& other) noexcept = default;
LayerCall::~LayerCall() = default;

bool LayerCall::step() {
  if (is_over()) {
    return false;
  }
  state_->has_begun = true;
  try {
    if (state_->task.step()) {
      return true;
    }
  } catch (...) {
    state_.reset();
    throw;
  }
  state_.reset();
  return false;
}

}  // namespace moebius
