// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Transfers beside the computation, on the call's stream for transfers if it has one.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "moebius/pending.h"
#include "moebius/prepare_finalize.h"
#include "moebius/profile.h"

namespace moebius {

inline const Stream& transfer_stream(const CallContext& context) {
  return context.transfers ? *context.transfers : context.stream;
}

// Calls start(stream) -> Pending<Result>, which enqueues a transfer.
// The transfer begins after the work that context.stream has been given by now, and does not wait
// for what other micro-batches enqueue there later.  After receiving, context.stream waits for this
// transfer, but not for those that others have started since.
template <typename Result, typename Start>
Pending<Result> start_transfer(const CallContext& context, Start&& start) {
  if (!context.transfers) {
    return start(context.stream);
  }
  const Stream way = *context.transfers;
  way.wait(context.stream.record());
  auto pending = std::make_shared<Pending<Result>>(start(way));
  auto arrived = std::make_shared<Event>();
  return {[pending, way, arrived] {
            if (pending->hook) {
              pending->hook();
            }
            *arrived = way.record();
          },
          [pending, arrived, stream = context.stream] {
            stream.wait(*arrived);
            return pending->receive();
          }};
}

// Calls call() -> Result at once and returns its result as a transfer that is complete.
template <typename Result, typename Call>
Pending<Result> made_at_once(Call&& call) {
  if constexpr (std::is_void_v<Result>) {
    call();
    return {nullptr, [] {}};
  } else {
    return {nullptr, [result = call()] { return result; }};
  }
}

// start_transfer() for a transfer without halves: call(context) -> Result.
template <typename Result, typename Call>
Pending<Result> start_all(const CallContext& context, Call&& call) {
  return start_transfer<Result>(context, [&](const Stream& stream) -> Pending<Result> {
    CallContext own = context;
    own.stream = stream;
    own.transfers.reset();
    return made_at_once<Result>([&] { return call(own); });
  });
}

// A span on the stream where rows travel.
Profile::Span transfer_span(std::string_view stage, const CallContext& context);
// The hook with a span of the stage around it.
std::function<void()> timed(std::string_view stage,
                            std::function<void()> hook,
                            const CallContext& context);
// For profiles: makes the stream for transfers wait for the call's stream now, because the
// transfer's span must not begin while it still waits.
void begin_after_compute(const CallContext& context);

// Runs all hooks, and receives all, in order.
Pending<void> joined(std::vector<Pending<void>> all);

}  // namespace moebius
