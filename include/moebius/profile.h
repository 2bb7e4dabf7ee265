// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Profile: time per named stage, for reports.  Spans may nest; totals count each by itself.
// On a GPU a span lasts from what its stream had to do before it to the end of what was enqueued in
// it; nothing waits until stages() is asked for.
// Thread-safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/stream.h"

namespace moebius {

class Profile {
 public:
  struct Stage {
    std::string name;
    int64_t calls = 0;
    std::chrono::nanoseconds total{0};
  };

  // Measures from construction to destruction; a null profile makes it free.
  class Span {
   public:
    Span(Profile* profile, std::string_view stage);
    Span(Profile* profile, std::string_view stage, const Stream& stream);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Profile* profile_;
    size_t stage_ = 0;
    std::chrono::steady_clock::time_point start_;
    const Stream* gpu_ = nullptr;  // the stream whose time is measured; null: the host's
    Event begin_;
  };

  // In order of first appearance.  Waits for the GPU's work in all spans.
  const std::vector<Stage>& stages() const;
  void clear();

 private:
  struct OnGpu {
    size_t stage;
    Event begin;
    Event end;
  };

  mutable std::vector<Stage> stages_;
  mutable std::vector<OnGpu> on_gpu_;  // not added to the totals yet
};

}  // namespace moebius
