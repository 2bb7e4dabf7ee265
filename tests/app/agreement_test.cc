// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How ranks compare what they were given: all of them throw the same message, or none throws.
#include "app/run/agreement.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace moebius::app {
namespace {

// The messages of all ranks; "no error" from those that throw nothing.
template <typename ValuesOf>
std::vector<std::string> compare(int num_ranks, const ValuesOf& values_of) {
  std::vector<std::string> messages(static_cast<size_t>(num_ranks));
  ThreadGroupOptions options;
  options.num_ranks = num_ranks;
  run_thread_ranks(options, [&](Group& group) {
    std::string& message = messages[static_cast<size_t>(group.rank())];
    message = testing::message_of([&] { expect_agreement(values_of(group.rank()), group); });
    if (message != "no error") {
      group.abort(message);
    }
  });
  return messages;
}

std::vector<std::string> all_of(int num_ranks, const std::string& message) {
  return std::vector<std::string>(static_cast<size_t>(num_ranks), message);
}

TEST(Agreement, EqualValuesAreFine) {
  for (const int num_ranks : {1, 2, 5}) {
    EXPECT_EQ(compare(num_ranks,
                      [](int) {
                        return std::vector<Agreed>{{.name = "--layer", .value = "1"},
                                                   {.name = "--seed", .value = ""}};
                      }),
              all_of(num_ranks, "no error"));
  }
}

TEST(Agreement, TheFirstDifferenceIsNamedOnEveryRank) {
  const auto values_of = [](int rank) {
    return std::vector<Agreed>{{.name = "--layer", .value = "1"},
                               {.name = "--seed", .value = rank < 2 ? "7" : "1234567"},
                               {.name = "--repeat", .value = std::to_string(rank)}};
  };
  EXPECT_EQ(compare(4, values_of), all_of(4, "--repeat is 0 on rank 0, but 1 on rank 1"));
  const auto without_last = [&](int rank) {
    auto values = values_of(rank);
    values.pop_back();
    return values;
  };
  EXPECT_EQ(compare(4, without_last), all_of(4, "--seed is 7 on rank 0, but 1234567 on rank 2"));
}

TEST(Agreement, ContentsMayHaveOtherPaths) {
  const auto values_of = [](uint64_t digest_of_2) {
    return [=](int rank) {
      return std::vector<Agreed>{{.name = "--model",
                                  .value = "models/" + std::to_string(rank),
                                  .digest = rank == 2 ? digest_of_2 : 10,
                                  .is_content = true}};
    };
  };
  EXPECT_EQ(compare(3, values_of(10)), all_of(3, "no error"));
  EXPECT_EQ(compare(3, values_of(11)),
            all_of(3,
                   "--model is models/0 (content 000000000000000a) on rank 0, but models/2 "
                   "(content 000000000000000b) on rank 2"));
}

TEST(Agreement, ListsOfOtherBuildsDiffer) {
  const auto values_of = [](int rank) {
    std::vector<Agreed> values = {{.name = "--layer", .value = "1"}};
    if (rank == 1) {
      values.push_back({.name = "--novel", .value = "2"});
    }
    return values;
  };
  EXPECT_EQ(compare(2, values_of), all_of(2, "rank 0 compares , but rank 1 compares --novel"));
}

}  // namespace
}  // namespace moebius::app
