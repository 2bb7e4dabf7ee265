// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include "core/digest.h"
#include "moebius/error.h"

namespace moebius::app {

namespace {

struct Outline {
  uint64_t digest = 0;
  int64_t bytes = 0;  // of text_of()
  bool operator==(const Outline&) const = default;
};

// Returns the part of a value that is compared.
std::string compared(const Agreed& agreed) {
  return agreed.is_content ? fmt::format("{:016x}", agreed.digest) : agreed.value;
}

// Three strings for each value, which end with 0: its name, what is compared, and what is shown.
std::string text_of(const std::vector<Agreed>& values) {
  std::string text;
  for (const Agreed& agreed : values) {
    const std::string shown = agreed.is_content
                                  ? fmt::format("{} (content {})", agreed.value, compared(agreed))
                                  : agreed.value;
    for (const std::string& part : {agreed.name, compared(agreed), shown}) {
      text.append(part.c_str(), part.size() + 1);
    }
  }
  return text;
}

uint64_t digest_of(const std::vector<Agreed>& values) {
  Digest digest;
  for (const Agreed& agreed : values) {
    for (const std::string& part : {agreed.name, compared(agreed)}) {
      digest.add(std::as_bytes(std::span(part.c_str(), part.size() + 1)));
    }
  }
  return digest.value();
}

// Takes the first string off a text_of(); an empty one where nothing is left.
std::string_view take(std::string_view& text) {
  const std::string_view first = text.substr(0, text.find('\0'));
  text.remove_prefix(std::min(first.size() + 1, text.size()));
  return first;
}

// Throws for the first value of `rank` that differs from rank 0's.
void expect_equal(std::string_view first, std::string_view other, int rank) {
  while (!first.empty() || !other.empty()) {
    const std::string_view name = take(first);
    const std::string_view other_name = take(other);
    const std::string_view value = take(first);
    const std::string_view other_value = take(other);
    const std::string_view shown = take(first);
    const std::string_view other_shown = take(other);
    if (name != other_name) {
      throw InvalidArgument(
          fmt::format("rank 0 compares {}, but rank {} compares {}", name, rank, other_name));
    }
    if (value != other_value) {
      throw InvalidArgument(
          fmt::format("{} is {} on rank 0, but {} on rank {}", name, shown, other_shown, rank));
    }
  }
}

// Returns on rank 0 once every rank has all texts, and elsewhere once rank 0 has thrown and aborted
// the group.  Why: a rank that aborted it sooner would end calls that others are in, and these
// would only tell of that rank.
void let_first_throw(Group& group) {
  constexpr std::string_view kOp = "options that differ are known";
  if (group.rank() == 0) {
    group.barrier(kOp);
    return;
  }
  try {
    group.barrier(kOp);
    group.barrier("rank 0 tells which options differ");
  } catch (const CommError&) {
    // This is rank 0's error.  If it died instead, values still differ, which is the first reason.
  }
}

}  // namespace

void expect_agreement(const std::vector<Agreed>& values, Group& group) {
  const std::string text = text_of(values);
  const Outline mine{digest_of(values), static_cast<int64_t>(text.size())};
  const auto num_ranks = static_cast<size_t>(group.size());
  std::vector<Outline> all(num_ranks);
  all_gather_bytes(group, "options of the ranks", &mine, sizeof(mine), all.data());
  const auto differs = std::find_if(all.begin(), all.end(), [&](const Outline& outline) {
    return outline.digest != all.front().digest;
  });
  if (differs == all.end()) {
    return;
  }
  // This is the way of a failure, so every rank may get the text of every other.
  size_t longest = 0;
  for (const Outline& outline : all) {
    longest = std::max(longest, static_cast<size_t>(outline.bytes));
  }
  std::string padded = text;
  padded.resize(longest);
  std::string texts(num_ranks * longest, '\0');
  all_gather_bytes(group, "options that differ", padded.data(), static_cast<int64_t>(longest),
                   texts.data());
  const auto text_at = [&](size_t rank) {
    return std::string_view(texts).substr(rank * longest, static_cast<size_t>(all[rank].bytes));
  };
  const auto rank = static_cast<size_t>(differs - all.begin());
  let_first_throw(group);
  expect_equal(text_at(0), text_at(rank), static_cast<int>(rank));
}

}  // namespace moebius::app
