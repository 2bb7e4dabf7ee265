// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/flight.h"

namespace moebius {

Flight::Flight(std::string_view name, const CallContext& context, const Stream& stream)
    : profile_(*context.profile),
      name_(name),
      microbatch_(context.microbatch),
      stream_(stream),
      begin_(profile_.now(stream)),
      bytes_before_(profile_.bytes()) {}

void Flight::pause() {
  bytes_ += profile_.bytes() - bytes_before_;
}

void Flight::resume() {
  bytes_before_ = profile_.bytes();
}

void Flight::end() {
  pause();
  profile_.add_in_flight(name_, microbatch_, begin_, profile_.now(stream_), bytes_);
}

}  // namespace moebius
