// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/transfer.h"

#include <utility>

namespace moebius {

Profile::Span transfer_span(std::string_view stage, const CallContext& context) {
  return {context.profile, stage, transfer_stream(context), context.microbatch,
          context.transfers ? Profile::Track::kTransfers : Profile::Track::kCompute};
}

void begin_after_compute(const CallContext& context) {
  if (context.profile != nullptr && context.transfers) {
    context.transfers->wait(context.stream.record());
  }
}

std::function<void()> timed(std::string_view stage,
                            std::function<void()> hook,
                            const CallContext& context) {
  if (!hook || context.profile == nullptr) {
    return hook;
  }
  return [stage, hook = std::move(hook), context] {
    const Profile::Span span = transfer_span(stage, context);
    hook();
  };
}

Pending<void> joined(std::vector<Pending<void>> all) {
  if (all.size() == 1) {
    return std::move(all.front());
  }
  const auto shared = std::make_shared<std::vector<Pending<void>>>(std::move(all));
  return {[shared] {
            for (const Pending<void>& one : *shared) {
              if (one.hook) {
                one.hook();
              }
            }
          },
          [shared] {
            for (const Pending<void>& one : *shared) {
              one.receive();
            }
          }};
}

}  // namespace moebius
