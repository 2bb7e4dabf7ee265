// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/profile.h"

#include "moebius/error.h"
#include "moebius/log.h"

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

Profile::Span::Span(Profile* profile, std::string_view stage, const Stream& stream)
    : Span(profile, stage) {
  if (profile_ != nullptr && stream.device().is_cuda()) {
    gpu_ = &stream;
    begin_ = stream.record_timed();
  }
}

Profile::Span::~Span() {
  if (profile_ == nullptr) {
    return;
  }
  Stage& stage = profile_->stages_[stage_];
  ++stage.calls;
  if (gpu_ == nullptr) {
    stage.total += std::chrono::steady_clock::now() - start_;
    return;
  }
  try {
    profile_->on_gpu_.push_back({stage_, begin_, gpu_->record_timed()});
  } catch (const Error& error) {  // an error of the span's own work, most likely, says more
    log(LogLevel::kError, error.what());
  }
}

const std::vector<Profile::Stage>& Profile::stages() const {
  for (const OnGpu& span : on_gpu_) {
    stages_[span.stage].total += span.end.since(span.begin);
  }
  on_gpu_.clear();
  return stages_;
}

void Profile::clear() {
  stages_.clear();
  on_gpu_.clear();
}

}  // namespace moebius
