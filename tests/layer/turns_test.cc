// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests in which order tasks take turns, when hooks run, and how tasks end.
#include "layer/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace moebius {
namespace {

using Journal = std::vector<std::string>;

struct Witness {
  Journal& journal;
  std::string text;
  ~Witness() { journal.push_back(text); }
};

// A task with two transfers, like a call of a layer.
struct Calls {
  Turns turns;
  Journal journal = {};
  int failing = -1;             // the call that fails; -1: none
  std::string failing_at = {};  // the step in which it fails

  void note(int i, const std::string& what) {
    journal.push_back(std::to_string(i) + " " + what);
    if (i == failing && what == failing_at) {
      throw std::runtime_error("call " + std::to_string(i) + " failed to " + what);
    }
  }
  Task call(int i, bool has_work) {
    const Witness ends{journal, std::to_string(i) + " ends"};
    turns.before_send();
    note(i, "send");
    Travel there{[this, i] { note(i, "hook"); }, {}};
    if (has_work) {
      there.meanwhile = [this, i] { note(i, "work"); };
    }
    co_yield std::move(there);
    turns.before_send();
    note(i, "compute");
    Travel back{[this, i] { note(i, "hook back"); }, {}};
    co_yield std::move(back);
    note(i, "receive");
  }
  const Journal& run(int count, bool has_work = false) {
    turns.run(count, [&](int i) { return call(i, has_work); });
    return journal;
  }
};

TEST(Turns, OneRunsThrough) {
  Calls calls{.turns = Turns(7, false)};
  EXPECT_EQ(calls.run(1, true), (Journal{"0 send", "0 work", "0 hook", "0 compute", "0 hook back",
                                         "0 receive", "0 ends"}));
}

TEST(Turns, GoRoundAndHooksThatWaitComeLast) {
  Calls calls{.turns = Turns(7, false)};
  EXPECT_EQ(calls.run(3),
            (Journal{"0 send", "1 send", "2 send", "0 hook", "0 compute", "1 hook", "1 compute",
                     "2 hook", "2 compute", "0 hook back", "0 receive", "0 ends", "1 hook back",
                     "1 receive", "1 ends", "2 hook back", "2 receive", "2 ends"}));
}

TEST(Turns, HooksThatEnqueueComeBeforeTheNextSend) {
  Calls calls{.turns = Turns(7, true)};
  EXPECT_EQ(calls.run(2),
            (Journal{"0 send", "0 hook", "1 send", "1 hook", "0 compute", "0 hook back",
                     "1 compute", "0 receive", "0 ends", "1 hook back", "1 receive", "1 ends"}));
}

TEST(Turns, NoMoreAreUnderWayThanMayBe) {
  Calls calls{.turns = Turns(2, false)};
  EXPECT_EQ(
      calls.run(4),
      (Journal{"0 send",      "1 send",    "0 hook", "0 compute",   "1 hook",      "1 compute",
               "0 hook back", "0 receive", "0 ends", "2 send",      "1 hook back", "1 receive",
               "1 ends",      "3 send",    "2 hook", "2 compute",   "3 hook",      "3 compute",
               "2 hook back", "2 receive", "2 ends", "3 hook back", "3 receive",   "3 ends"}));
}

TEST(Turns, OneThatFailsEndsTheOthers) {
  for (const std::string at : {"send", "work", "hook", "compute", "hook back", "receive"}) {
    SCOPED_TRACE(at);
    Calls calls{.turns = Turns(3, false), .failing = 1, .failing_at = at};
    try {
      calls.run(4, true);
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "call 1 failed to " + at);
    }
    // Every call that has begun has ended, exactly once.
    const auto count = [&](const std::string& entry) {
      return std::count(calls.journal.begin(), calls.journal.end(), entry);
    };
    for (int i = 0; i < 4; ++i) {
      const std::string call = std::to_string(i);
      EXPECT_EQ(count(call + " send"), count(call + " ends")) << call;
    }
    EXPECT_EQ(count("1 ends"), 1);
    // The object can be used again.
    calls.journal.clear();
    calls.failing = -1;
    EXPECT_EQ(calls.run(1).size(), 6u);
  }
}

TEST(Turns, WhatIsGivenUpIsGivenUpWhileTheErrorIsUnderWay) {
  struct Observer {
    int* seen;
    ~Observer() { *seen = std::uncaught_exceptions(); }
  };
  std::array<int, 2> seen{};
  Turns turns(2, false);
  const auto make = [&](int i) -> Task {
    struct Body {
      static Task run(int index, int* where) {
        const Observer observer{where};
        co_yield Travel{};
        if (index == 1) {
          throw std::runtime_error("failed");
        }
        co_yield Travel{};
      }
    };
    return Body::run(i, &seen[static_cast<size_t>(i)]);
  };
  EXPECT_THROW(turns.run(2, make), std::runtime_error);
  EXPECT_EQ(seen[0], 1);  // the exception was under way when the other task ended
}

}  // namespace
}  // namespace moebius
