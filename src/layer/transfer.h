// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Transfers beside the computation: where a call has a stream for them, they go there.
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

// start(stream) -> Pending<Result> enqueues the transfer.  It begins after what context.stream has
// been given until now: what other micro-batches enqueue there later does not hold it up.  What the
// call does after receiving comes after the transfer, and what others send in between does not hold
// it up either.
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

// call() -> Result, made at once, where halves are expected.
template <typename Result, typename Call>
Pending<Result> made_at_once(Call&& call) {
  if constexpr (std::is_void_v<Result>) {
    call();
    return {nullptr, [] {}};
  } else {
    return {nullptr, [result = call()] { return result; }};
  }
}

// start_transfer() for a call without halves, call(context) -> Result.
template <typename Result, typename Call>
Pending<Result> start_all(const CallContext& context, Call&& call) {
  return start_transfer<Result>(context, [&](const Stream& stream) -> Pending<Result> {
    CallContext own = context;
    own.stream = stream;
    own.transfers.reset();
    return made_at_once<Result>([&] { return call(own); });
  });
}

// A span of the stream where rows travel.
Profile::Span transfer_span(std::string_view stage, const CallContext& context);
// The span of a stage around a hook.
std::function<void()> timed(std::string_view stage,
                            std::function<void()> hook,
                            const CallContext& context);
// Profiles only: a transfer waits for what the call has been given, and its span is not to begin
// before.
void begin_after_compute(const CallContext& context);

// All of them, in order.
Pending<void> joined(std::vector<Pending<void>> all);

}  // namespace moebius
