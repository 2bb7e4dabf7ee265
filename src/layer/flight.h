// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Flight: a transfer in a profile, from the begin of its send until its rows are known to be here:
// what a trace draws as in flight, and what computing may hide (overlap.h).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "moebius/pending.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

class Flight {
 public:
  // REQUIRES: a profile that keeps intervals.
  // It begins when the stream has done what it has been given.  name: "dispatch" or "combine".
  Flight(std::string_view name, const CallContext& context, const Stream& stream);

  // What is sent between resume() and pause() belongs to it; a new one is not paused.
  void pause();
  void resume();
  void end();  // when the stream has done what it has been given until now

 private:
  Profile& profile_;
  std::string name_;
  int microbatch_;
  Stream stream_;
  Profile::Point begin_;
  int64_t bytes_ = 0;     // before the last resume()
  int64_t bytes_before_;  // of the profile, then
};

inline bool records_flights(const CallContext& context) {
  return context.profile != nullptr && context.profile->keeps_intervals();
}

// start() -> Pending<Result> as a flight, which ends with the hook.
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

// call() as a flight, which ends with it.
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
