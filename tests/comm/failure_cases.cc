// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/failure_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "moebius/deadline.h"

namespace moebius::testing {

namespace {

// Gathers `bytes` of each rank, as a step of a pipeline would.
void step(Group& group, std::string_view op, int64_t bytes = 8) {
  const std::vector<std::byte> in(static_cast<size_t>(bytes));
  std::vector<std::byte> out(static_cast<size_t>(bytes * group.size()));
  all_gather_bytes(group, op, in.data(), bytes, out.data());
}

void stall(const Group& group) {
  std::this_thread::sleep_for(kStall * group.timeout());
}

// Two exchanges are under way when the reader of the second throws, in the pass that ends the
// first.  The second must never pass for done after that, nor is anything done with the first.
void read_in_vain(Group& group, int guilty) {
  const auto flags = group.make_window("flags", 8 * (group.size() + 1));
  const auto flag = [&](int owner, int i) {
    return std::atomic_ref<int64_t>(reinterpret_cast<int64_t*>(flags->peer(owner))[i]);
  };
  const int go = group.size();
  const bool is_guilty = group.rank() == guilty;
  if (!is_guilty) {
    group.wait_until(
        "go", guilty, [&] { return flag(group.rank(), go).load() == 1; }, [] { return "no go"; });
  }
  const std::vector<int64_t> out(1, group.rank());
  std::vector<int64_t> in(static_cast<size_t>(group.size()));
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (int peer = 0; peer < group.size(); ++peer) {
    sends.push_back({peer, out.data(), 8});
    recvs.push_back({peer, &in[static_cast<size_t>(peer)], 8});
  }
  int num_read = 0;
  auto first = group.start_exchange("layout", sends, recvs);
  const auto second =
      group.start_exchange("dispatch", sends, recvs, [&](std::span<const std::byte* const>) {
        ++num_read;
        if (is_guilty) {
          throw Error("cannot read this");
        }
      });
  if (!is_guilty) {
    second->test();
    flag(guilty, group.rank()).store(1);
    second->wait();
    group.barrier("combine");
    return;
  }
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != guilty) {
      flag(peer, go).store(1);
    }
  }
  // Without a call of the group, which would end the first.
  const Deadline deadline = Deadline::after(group.timeout());
  for (int peer = 0; peer < group.size(); ++peer) {
    while (peer != guilty && flag(guilty, peer).load() == 0) {
      expect(!deadline.expired(), "a peer has not started its exchanges");
      std::this_thread::yield();
    }
  }
  const auto thrown_by = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing";
  };
  const std::string thrown = thrown_by([&] { second->wait(); });
  first.reset();
  for (int i = 0; i < 2; ++i) {
    for (const std::string& again :
         {thrown_by([&] { second->test(); }), thrown_by([&] { second->wait(); }),
          thrown_by([&] { group.barrier("combine"); })}) {
      expect(again.find("failed: cannot read this") != std::string::npos,
             fmt::format("after its reader threw \"{}\" a call threw \"{}\"", thrown, again));
    }
  }
  expect_eq(num_read, 1, "calls of the reader");
  throw Error(thrown);
}

}  // namespace

std::vector<FailureCase> failure_cases() {
  return {
      {.name = "throws",
       .body =
           [](Group& group, int guilty) {
             step(group, "layout");
             if (group.rank() == guilty) {
               throw Error("expert 7 is on fire");
             }
             step(group, "dispatch");
           },
       .calls = {"dispatch, epoch 2", "layout, epoch 1"},
       .parts = {"rank @ failed: expert 7 is on fire"}},
      {.name = "returns_early",
       .body =
           [](Group& group, int guilty) {
             step(group, "layout");
             if (group.rank() != guilty) {
               step(group, "dispatch");
             }
           },
       .calls = {"dispatch, epoch 2", "layout, epoch 1"},
       .parts = {"rank @ has left"},
       .guilty_reports = false},
      {.name = "skips_a_call",
       .body =
           [](Group& group, int guilty) {
             step(group, "layout");
             if (group.rank() != guilty) {
               step(group, "dispatch");
             }
             step(group, "combine");
           },
       .calls = {"dispatch, epoch 2", "layout, epoch 1"},
       .parts = {"rank @ is in \"combine\"", "\"dispatch\"", "at epoch 2"}},
      {.name = "repeats_a_call",
       .body =
           [](Group& group, int guilty) {
             step(group, "layout");
             if (group.rank() == guilty) {
               step(group, "layout");
             }
             step(group, "dispatch");
           },
       .calls = {"dispatch, epoch 2", "layout, epoch 1"},
       .parts = {"rank @ is in \"layout\"", "\"dispatch\"", "at epoch 2"}},
      {.name = "skips_the_last_call",
       .body =
           [](Group& group, int guilty) {
             for (int i = 0; i < (group.rank() == guilty ? 4 : 5); ++i) {
               group.barrier("dispatch");
             }
           },
       .calls = {"dispatch, epoch 5", "dispatch, epoch 4"},
       .parts = {"rank @ has left"},
       .guilty_reports = false},
      {.name = "sends_a_wrong_size",
       .body = [](Group& group,
                  int guilty) { step(group, "dispatch", group.rank() == guilty ? 9 : 8); },
       .calls = {"dispatch, epoch 1"},
       .parts = {"rank @", "9", "8", "which expects"}},
      {.name = "sends_a_wrong_large_size",
       .body =
           [](Group& group, int guilty) {
             step(group, "dispatch", group.rank() == guilty ? 20'009 : 20'000);
           },
       .calls = {"dispatch, epoch 1"},
       .parts = {"rank @", "20009", "20000", "which expects"}},
      {.name = "sends_too_many_blocks",
       .body =
           [](Group& group, int guilty) {
             const int64_t value = 1;
             std::vector<SendBlock> sends(group.rank() == guilty ? 2 : 1, {guilty, &value, 8});
             std::vector<int64_t> in(static_cast<size_t>(group.size()));
             std::vector<RecvBlock> recvs;
             for (int peer = 0; peer < group.size() && group.rank() == guilty; ++peer) {
               recvs.push_back({peer, &in[static_cast<size_t>(peer)], 8});
             }
             group.exchange("dispatch", sends, recvs);
             step(group, "combine");
           },
       .calls = {"dispatch, epoch 1", "combine, epoch 2"},
       .parts = {"rank @", "which expects"}},
      {.name = "stalls_before_a_call",
       .body =
           [](Group& group, int guilty) {
             step(group, "layout");
             if (group.rank() == guilty) {
               stall(group);
             }
             step(group, "dispatch");
           },
       .calls = {"dispatch, epoch 2", "layout, epoch 1"},
       .parts = {"rank @ did not come within", "expected at epoch 2"},
       .is_timeout = true},
      {.name = "stalls_in_an_exchange",
       .body =
           [](Group& group, int guilty) {
             step(group, "layout");
             // Large: the bytes cannot go anywhere without their receiver.
             const std::vector<std::byte> out(8'000'000);
             std::vector<std::byte> in(out.size());
             std::vector<SendBlock> sends;
             std::vector<RecvBlock> recvs;
             if (group.rank() == guilty) {
               recvs.push_back({(guilty + 1) % group.size(), in.data(), 8'000'000});
             } else if (group.rank() == (guilty + 1) % group.size()) {
               sends.push_back({guilty, out.data(), 8'000'000});
             }
             const auto exchange = group.start_exchange("dispatch", sends, recvs);
             if (group.rank() == guilty) {
               stall(group);
             }
             exchange->wait();
             group.barrier("combine");
           },
       .calls = {"dispatch, epoch 2", "combine, epoch 3"},
       .parts = {"rank @ did not come within"},
       .is_timeout = true},
      {.name = "gives_no_signal",
       .body =
           [](Group& group, int guilty) {
             step(group, "layout");
             if (group.rank() == guilty) {
               stall(group);
             }
             group.wait_until(
                 "receive", guilty, [&] { return group.rank() == guilty; },
                 [] { return "expected flag 7, seen 6"; });
             group.barrier("end");
           },
       .calls = {"receive, epoch 1", "layout, epoch 1"},
       .parts = {"rank @ did not come within", "expected flag 7, seen 6"},
       .is_timeout = true},
      {.name = "leaves_without_a_signal",
       .body =
           [](Group& group, int guilty) {
             step(group, "layout");
             if (group.rank() != guilty) {
               group.wait_until(
                   "receive", guilty, [] { return false; },
                   [] { return "expected flag 7, seen 6"; });
             }
           },
       .calls = {"receive, epoch 1", "layout, epoch 1"},
       .parts = {"rank @ has left", "expected flag 7, seen 6"},
       .guilty_reports = false},
      {.name = "abandons_an_exchange",
       .body =
           [](Group& group, int guilty) {
             const std::vector<std::byte> out(1000);
             std::vector<std::byte> in(1000);
             const std::vector<SendBlock> sends = {
                 {(group.rank() + 1) % group.size(), out.data(), 1000}};
             const std::vector<RecvBlock> recvs = {
                 {(group.rank() + group.size() - 1) % group.size(), in.data(), 1000}};
             auto exchange = group.start_exchange("dispatch", sends, recvs);
             if (group.rank() == guilty) {
               exchange.reset();
             } else {
               exchange->wait();
             }
             group.barrier("combine");
           },
       .calls = {"dispatch, epoch 1", "combine, epoch 2"},
       .parts = {"rank @ abandoned dispatch at epoch 1"}},
      {.name = "reader_throws",
       .body =
           [](Group& group, int guilty) {
             const int64_t out = 1;
             std::vector<SendBlock> sends;
             std::vector<RecvBlock> recvs;
             for (int peer = 0; peer < group.size(); ++peer) {
               sends.push_back({peer, &out, 8});
               recvs.push_back({peer, nullptr, 8});
             }
             group.exchange("dispatch", sends, recvs, [&](std::span<const std::byte* const>) {
               if (group.rank() == guilty) {
                 throw Error("cannot read this");
               }
             });
             group.barrier("combine");
           },
       .calls = {"dispatch, epoch 1", "combine, epoch 2"},
       .parts = {"rank @ failed: cannot read this"},
       .guilty_says = "cannot read this"},
      {.name = "reader_throws_with_another_exchange_open",
       .body = read_in_vain,
       // A window takes a call more among processes than among threads.
       .calls = {"dispatch, epoch 4", "dispatch, epoch 5", "combine, epoch 5", "combine, epoch 6"},
       .parts = {"rank @ failed: cannot read this"},
       .guilty_says = "cannot read this"},
  };
}

const FailureCase& failure_case(const std::string& name) {
  static const std::vector<FailureCase> cases = failure_cases();
  const auto found = std::find_if(cases.begin(), cases.end(),
                                  [&](const FailureCase& c) { return c.name == name; });
  expect(found != cases.end(), fmt::format("no failure case is named {}", name));
  return *found;
}

std::string missing_from_guilty(const std::string& message, const FailureCase& c) {
  if (message.empty() == c.guilty_reports) {
    return message.empty() ? "the guilty rank says nothing\n"
                           : fmt::format("the guilty rank says \"{}\"\n", message);
  }
  return c.guilty_says.empty() || message == c.guilty_says
             ? ""
             : fmt::format("the guilty rank does not say \"{}\" but \"{}\"\n", c.guilty_says,
                           message);
}

std::string missing_from(const std::string& message, const FailureCase& c, int rank, int guilty) {
  std::string missing;
  if (std::none_of(c.calls.begin(), c.calls.end(), [&](const std::string& call) {
        return message.starts_with(fmt::format("rank {}: {}: ", rank, call));
      })) {
    missing = fmt::format("rank {} is not in {} but says \"{}\"\n", rank, c.calls.front(), message);
  }
  std::vector<std::string> wanted;
  for (std::string part : c.parts) {
    const size_t at = part.find('@');
    wanted.push_back(at == std::string::npos ? part : part.replace(at, 1, std::to_string(guilty)));
  }
  for (const std::string& part : wanted) {
    if (message.find(part) == std::string::npos) {
      missing += fmt::format("rank {} does not say \"{}\" but \"{}\"\n", rank, part, message);
    }
  }
  return missing;
}

}  // namespace moebius::testing
