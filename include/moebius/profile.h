// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Profile: wall time per named stage, for reports.  Spans may nest; totals count each by itself.
// Thread-safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Profile* profile_;
    size_t stage_ = 0;
    std::chrono::steady_clock::time_point start_;
  };

  const std::vector<Stage>& stages() const { return stages_; }  // in order of first appearance
  void clear() { stages_.clear(); }

 private:
  std::vector<Stage> stages_;
};

}  // namespace moebius
