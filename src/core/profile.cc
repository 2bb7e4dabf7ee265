// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/profile.h"

namespace moebius {

Profile::Span::Span(Profile* profile, std::string_view stage) : profile_(profile) {
  if (profile_ == nullptr) {
    return;
  }
  auto& stages = profile_->stages_;
  while (stage_ < stages.size() && stages[stage_].name != stage) {
    ++stage_;
  }
  if (stage_ == stages.size()) {
    stages.push_back({std::string(stage), 0, {}});
  }
  start_ = std::chrono::steady_clock::now();
}

Profile::Span::~Span() {
  if (profile_ == nullptr) {
    return;
  }
  Stage& stage = profile_->stages_[stage_];
  ++stage.calls;
  stage.total += std::chrono::steady_clock::now() - start_;
}

}  // namespace moebius
