// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/flight.h"

namespace moebius {

Flight::Flight(std::string_view name, const CallContext& context, const Stream& stream)
    : profile_(context.profile != nullptr && context.profile->keeps_intervals() ? context.profile
                                                                                : nullptr),
      name_(name),
      microbatch_(context.microbatch),
      stream_(stream) {
  if (profile_ != nullptr) {
    begin_ = profile_->now(stream_);
    bytes_before_ = profile_->bytes();
  }
}

void Flight::pause() {
  if (profile_ != nullptr) {
    bytes_ += profile_->bytes() - bytes_before_;
  }
}

void Flight::resume() {
  if (profile_ != nullptr) {
    bytes_before_ = profile_->bytes();
  }
}

void Flight::end() {
  if (profile_ != nullptr) {
    pause();
    profile_->add_in_flight(name_, microbatch_, begin_, profile_->now(stream_), bytes_);
  }
}

}  // namespace moebius
