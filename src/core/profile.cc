// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/profile.h"

#include <cassert>
#include <utility>

#include "moebius/error.h"
#include "moebius/log.h"

namespace moebius {

namespace {

// One moment on the GPU's clock and on the host's.  Earlier events are placed by their distance to
// it, so nothing has to wait while the work is under way.
struct Anchor {
  Event event;
  Profile::Clock::time_point host;

  explicit Anchor(const Stream& stream) {
    stream.synchronize();  // the event is then recorded at once
    const auto before = Profile::Clock::now();
    event = stream.record_timed();
    event.synchronize();
    host = before + (Profile::Clock::now() - before) / 2;
  }
  Profile::Clock::time_point time_of(const Event& earlier) const {
    return host - event.since(earlier);
  }
};

}  // namespace

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
  outer_ = std::exchange(profile_->open_, this);
  start_ = profile_->now_();
}

Profile::Span::Span(
    Profile* profile, std::string_view stage, const Stream& stream, int microbatch, Track track)
    : Span(profile, stage) {
  microbatch_ = microbatch;
  if (profile_ != nullptr && stream.device().is_cuda()) {
    track_ = track;
    gpu_ = &stream;
    begin_ = stream.record_timed();
  }
}

Profile::Span::~Span() {
  if (profile_ == nullptr) {
    return;
  }
  assert(profile_->open_ == this);
  profile_->open_ = outer_;
  Stage& stage = profile_->stages_[stage_];
  ++stage.calls;
  const auto end = profile_->now_();
  if (gpu_ == nullptr) {
    stage.total += end - start_;
  }
  try {
    if (profile_->keeps_intervals()) {
      profile_->kept_.push_back(
          {{stage.name, Track::kHost, microbatch_, start_, end, bytes_}, {}, {}});
    }
    if (gpu_ != nullptr) {
      const Event done = gpu_->record_timed();
      profile_->on_gpu_.push_back({stage_, begin_, done});
      if (profile_->keeps_intervals()) {
        profile_->gpu_ = *gpu_;
        profile_->kept_.push_back({{stage.name, track_, microbatch_, {}, {}, 0}, begin_, done});
      }
    }
  } catch (const std::exception& error) {  // the span's own work has probably thrown already
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

std::vector<Profile::Interval> Profile::intervals() const {
  std::optional<Anchor> anchor;
  if (gpu_) {
    anchor.emplace(*gpu_);
  }
  std::vector<Interval> all;
  for (const Kept& kept : kept_) {
    all.push_back(kept.interval);
    if (kept.end.native_handle() != nullptr && anchor) {
      all.back().begin = anchor->time_of(kept.begin);
      all.back().end = anchor->time_of(kept.end);
    }
  }
  return all;
}

void Profile::clear() {
  stages_.clear();
  on_gpu_.clear();
  kept_.clear();
  gpu_.reset();
  bytes_ = 0;
}

Profile::Point Profile::now(const Stream& stream) const {
  return {now_(), stream.device().is_cuda() ? stream.record_timed() : Event()};
}

void Profile::add_in_flight(
    std::string_view name, int microbatch, const Point& begin, const Point& end, int64_t bytes) {
  if (keeps_intervals()) {
    kept_.push_back({{std::string(name), Track::kInFlight, microbatch, begin.host, end.host, bytes},
                     begin.event,
                     end.event});
  }
}

void Profile::add_wait(Clock::time_point begin, Clock::time_point end) {
  if (keeps_intervals()) {
    kept_.push_back({{std::string(kWait), Track::kHost,
                      open_ == nullptr ? kAll : open_->microbatch_, begin, end, 0},
                     {},
                     {}});
  }
}

void Profile::add_bytes(int64_t bytes) {
  bytes_ += bytes;
  if (open_ != nullptr) {
    open_->bytes_ += bytes;
  }
}

}  // namespace moebius
