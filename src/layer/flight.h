// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Flight: a transfer as a profile records it, from the beginning of its send until its rows are
// known to be here.  A trace draws it, and overlap.h measures how much of it computing hides.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "moebius/pending.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

class Flight {
 public:
  // The flight begins when the stream has done the work that it has been given by now.
  // name: "dispatch" or "combine".  REQUIRES: records_flights(context).
  Flight(std::string_view name, const CallContext& context, const Stream& stream)
      : profile_(*context.profile),
        name_(name),
        microbatch_(context.microbatch),
        stream_(stream),
        begin_(profile_.now(stream)),
        bytes_before_(profile_.bytes()) {}

  // Bytes that are sent while the flight is not paused belong to it.  A new flight is not paused.
  void pause() { bytes_ += profile_.bytes() - bytes_before_; }
  void resume() { bytes_before_ = profile_.bytes(); }
  // The flight ends when the stream has done the work that it has been given by now.
  void end() {
    pause();
    profile_.add_in_flight(name_, microbatch_, begin_, profile_.now(stream_), bytes_);
  }

 private:
  Profile& profile_;
  std::string name_;
  int microbatch_;
  Stream stream_;
  Profile::Point begin_;
  int64_t bytes_ = 0;     // sent before the last resume()
  int64_t bytes_before_;  // the profile's bytes at the last resume()
};

inline bool records_flights(const CallContext& context) {
  return context.profile != nullptr && context.profile->keeps_intervals();
}

// Calls start() -> Pending<Result> and records the transfer as a flight that ends with the hook.
template <typename Result, typename Start>
Pending<Result> in_flight(std::string_view name,
                          const CallContext& context,
                          const Stream& stream,
                          Start&& start) {
  if (!records_flights(context)) {
    return start();
  }
  auto flight = std::make_shared<Flight>(name, context, stream);
  Pending<Result> pending = start();
  flight->pause();
  return {[flight, hook = std::move(pending.hook)] {
            flight->resume();
            if (hook) {
              hook();
            }
            flight->end();
          },
          std::move(pending.receive)};
}

// Calls call() and records it as a flight.
template <typename Call>
void in_flight(std::string_view name,
               const CallContext& context,
               const Stream& stream,
               Call&& call) {
  if (!records_flights(context)) {
    return call();
  }
  Flight flight(name, context, stream);
  call();
  flight.end();
}

}  // namespace moebius
