// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/failure_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "moebius/deadline.h"

namespace moebius::testing {

namespace {

using Body = std::function<void(Group&, int)>;
using Step = std::function<void(Group&)>;

void gather(Group& group, std::string_view op, int64_t bytes = 8) {
  const std::vector<std::byte> in(static_cast<size_t>(bytes));
  std::vector<std::byte> out(static_cast<size_t>(bytes * group.size()));
  all_gather_bytes(group, op, in.data(), bytes, out.data());
}

// A step of a pipeline.
Step step(std::string_view op) {
  return [op](Group& group) { gather(group, op); };
}

void stall(Group& group) {
  std::this_thread::sleep_for(kStall * group.timeout());
}

// All ranks do the step "layout"; then the guilty one does other steps than the others.
Body after_layout(std::vector<Step> guilty_steps, std::vector<Step> steps) {
  return [guilty_steps, steps](Group& group, int guilty) {
    gather(group, "layout");
    for (const Step& next : group.rank() == guilty ? guilty_steps : steps) {
      next(group);
    }
  };
}

// The guilty rank gathers other sizes than the others expect.
Body gather_sizes(int64_t guilty_bytes, int64_t bytes) {
  return [=](Group& group, int guilty) {
    gather(group, "dispatch", group.rank() == guilty ? guilty_bytes : bytes);
  };
}

void send_too_many_blocks(Group& group, int guilty) {
  const int64_t value = 1;
  const std::vector<SendBlock> sends(group.rank() == guilty ? 2 : 1, {guilty, &value, 8});
  std::vector<int64_t> in(static_cast<size_t>(group.size()));
  std::vector<RecvBlock> recvs;
  for (int peer = 0; peer < group.size() && group.rank() == guilty; ++peer) {
    recvs.push_back({peer, &in[static_cast<size_t>(peer)], 8});
  }
  group.exchange("dispatch", sends, recvs);
  gather(group, "combine");
}

void stall_in_an_exchange(Group& group, int guilty) {
  gather(group, "layout");
  // The block is large, so that the bytes cannot go anywhere without their receiver.  Ranks without
  // a part in it have no memory for it: 64 ranks that fill 8 MB each take longer than the deadline.
  const int sender = (guilty + 1) % group.size();
  const bool takes_part = group.rank() == guilty || group.rank() == sender;
  std::vector<std::byte> block(takes_part ? 8'000'000 : 0);
  const auto bytes = static_cast<int64_t>(block.size());
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  if (group.rank() == guilty) {
    recvs.push_back({sender, block.data(), bytes});
  } else if (group.rank() == sender) {
    sends.push_back({guilty, block.data(), bytes});
  }
  const auto exchange = group.start_exchange("dispatch", sends, recvs);
  if (group.rank() == guilty) {
    stall(group);
  }
  exchange->wait();
  group.barrier("combine");
}

// The guilty rank does `instead` of giving the signal that the others await.
Body await_signal(Step instead) {
  return [instead](Group& group, int guilty) {
    gather(group, "layout");
    if (group.rank() == guilty) {
      return instead(group);
    }
    group.wait_until(
        "receive", guilty, [] { return false; }, [] { return "expected flag 7, seen 6"; });
  };
}

// The guilty rank stalls.  The rank behind it comes late, and then waits for it alone; the others
// have missed both for longer, so they give up first.
void stall_before_a_late_rank(Group& group, int guilty) {
  gather(group, "layout");
  if (group.rank() == guilty) {
    return stall(group);
  }
  if (group.rank() == (guilty + 1) % group.size()) {
    std::this_thread::sleep_for(group.timeout() / 2);
    group.wait_until(
        "receive", guilty, [] { return false; }, [] { return "expected flag 7, seen 6"; });
  }
  gather(group, "dispatch");
}

// The guilty rank is in a part of the group, which is destroyed before the group hears why.
void throw_beside_a_part(Group& group, int guilty) {
  const auto part = group.split(group.rank() / 2);
  part->barrier("layout");
  if (group.rank() == guilty) {
    throw Error("expert 7 is on fire");
  }
  group.barrier("dispatch");
}

void abandon_an_exchange(Group& group, int guilty) {
  const std::vector<std::byte> out(1000);
  std::vector<std::byte> in(1000);
  const SendBlock send{(group.rank() + 1) % group.size(), out.data(), 1000};
  const RecvBlock recv{(group.rank() + group.size() - 1) % group.size(), in.data(), 1000};
  auto exchange = group.start_exchange("dispatch", {&send, 1}, {&recv, 1});
  if (group.rank() == guilty) {
    exchange.reset();
  } else {
    exchange->wait();
  }
  group.barrier("combine");
}

void throw_in_a_reader(Group& group, int guilty) {
  const int64_t out = 1;
  const auto [sends, recvs] = gather_blocks(group.size(), &out, 8, nullptr);
  group.exchange("dispatch", sends, recvs, [&](std::span<const std::byte* const>) {
    if (group.rank() == guilty) {
      throw Error("cannot read this");
    }
  });
  group.barrier("combine");
}

// Two exchanges are under way when the reader of the second throws, in the pass that ends the
// first.  After that the second must never pass for done, and the group must not touch the first.
void read_in_vain(Group& group, int guilty) {
  const auto flags = group.make_window("flags", 8 * (group.size() + 1));
  const auto flag = [&](int owner, int i) { return word_of(*flags, owner, i); };
  const int go = group.size();
  const bool is_guilty = group.rank() == guilty;
  if (!is_guilty) {
    group.wait_until(
        "go", guilty, [&] { return flag(group.rank(), go).load() == 1; }, [] { return "no go"; });
  }
  const std::vector<int64_t> out(1, group.rank());
  std::vector<int64_t> in(static_cast<size_t>(group.size()));
  const auto [sends, recvs] = gather_blocks(group.size(), out.data(), 8, in.data());
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
  // This waits without a call of the group, which would end the first exchange.
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
  const std::vector<std::string> in_dispatch = {"dispatch, epoch 2", "layout, epoch 1"};
  const std::vector<std::string> in_first_dispatch = {"dispatch, epoch 1", "combine, epoch 2"};
  const Step throw_error = [](Group&) { throw Error("expert 7 is on fire"); };
  const auto barriers = [](int num_guilty, int num_others) {
    return [=](Group& group, int guilty) {
      for (int i = 0; i < (group.rank() == guilty ? num_guilty : num_others); ++i) {
        group.barrier("dispatch");
      }
    };
  };
  return {
      {.name = "throws",
       .body = after_layout({throw_error}, {step("dispatch")}),
       .calls = in_dispatch,
       .parts = {"rank @ failed: expert 7 is on fire"}},
      {.name = "throws_beside_a_part",
       .body = throw_beside_a_part,
       .calls = {"dispatch, epoch 2", "dispatch, epoch 3"},  // to split takes MPI one call more
       .parts = {"rank @ failed: expert 7 is on fire"}},
      {.name = "returns_early",
       .body = after_layout({}, {step("dispatch")}),
       .calls = in_dispatch,
       .parts = {"rank @ has left"},
       .guilty_reports = false},
      {.name = "skips_a_call",
       .body = after_layout({step("combine")}, {step("dispatch"), step("combine")}),
       .calls = in_dispatch,
       .parts = {"rank @ is in \"combine\"", "\"dispatch\"", "at epoch 2"}},
      {.name = "repeats_a_call",
       .body = after_layout({step("layout"), step("dispatch")}, {step("dispatch")}),
       .calls = in_dispatch,
       .parts = {"rank @ is in \"layout\"", "\"dispatch\"", "at epoch 2"}},
      {.name = "skips_the_last_call",
       .body = barriers(4, 5),
       .calls = {"dispatch, epoch 5", "dispatch, epoch 4"},
       .parts = {"rank @ has left"},
       .guilty_reports = false},
      {.name = "sends_a_wrong_size",
       .body = gather_sizes(9, 8),
       .calls = {"dispatch, epoch 1"},
       .parts = {"rank @", "9", "8", "which expects"}},
      {.name = "sends_a_wrong_large_size",
       .body = gather_sizes(20'009, 20'000),
       .calls = {"dispatch, epoch 1"},
       .parts = {"rank @", "20009", "20000", "which expects"}},
      {.name = "sends_too_many_blocks",
       .body = send_too_many_blocks,
       .calls = in_first_dispatch,
       .parts = {"rank @", "which expects"}},
      {.name = "stalls_before_a_call",
       .body = after_layout({stall, step("dispatch")}, {step("dispatch")}),
       .calls = in_dispatch,
       .parts = {"rank @ did not come within", "expected at epoch 2"},
       .is_timeout = true},
      {.name = "stalls_in_an_exchange",
       .body = stall_in_an_exchange,
       .calls = {"dispatch, epoch 2", "combine, epoch 3"},
       .parts = {"rank @ did not come within"},
       .is_timeout = true},
      {.name = "gives_no_signal",
       .body = await_signal([](Group& group) {
         stall(group);
         group.barrier("end");
       }),
       .calls = {"receive, epoch 1", "layout, epoch 1"},
       .parts = {"rank @ did not come within", "expected flag 7, seen 6"},
       .is_timeout = true},
      {.name = "stalls_before_a_late_rank",
       .body = stall_before_a_late_rank,
       .calls = {"dispatch, epoch 2", "receive, epoch 1"},
       .parts = {"rank @ did not come within"},
       .is_timeout = true,
       .guilty_reports = false,
       .names_nobody_else = true},
      {.name = "leaves_without_a_signal",
       .body = await_signal([](Group&) {}),
       .calls = {"receive, epoch 1", "layout, epoch 1"},
       .parts = {"rank @ has left", "expected flag 7, seen 6"},
       .guilty_reports = false},
      {.name = "abandons_an_exchange",
       .body = abandon_an_exchange,
       .calls = in_first_dispatch,
       .parts = {"rank @ abandoned dispatch at epoch 1"}},
      {.name = "reader_throws",
       .body = throw_in_a_reader,
       .calls = in_first_dispatch,
       .parts = {"rank @ failed: cannot read this"},
       .guilty_says = "cannot read this"},
      {.name = "reader_throws_with_another_exchange_open",
       .body = read_in_vain,
       // A window takes one call more among processes than among threads.
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

std::string missing_from_all(const std::vector<std::string>& messages,
                             const FailureCase& c,
                             int guilty) {
  std::string missing;
  for (int rank = 0; rank < static_cast<int>(messages.size()); ++rank) {
    const std::string& message = messages[static_cast<size_t>(rank)];
    missing +=
        rank == guilty ? missing_from_guilty(message, c) : missing_from(message, c, rank, guilty);
  }
  return missing;
}

std::string missing_from(const std::string& message, const FailureCase& c, int rank, int guilty) {
  constexpr int kMostRanks = 64;
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
  for (int other = 0; c.names_nobody_else && other < kMostRanks; ++other) {
    if (other != guilty &&
        message.find(fmt::format("rank {} did not come", other)) != std::string::npos) {
      missing += fmt::format("rank {} blames rank {}: \"{}\"\n", rank, other, message);
    }
  }
  return missing;
}

comm::BlockLists gather_blocks(int num_ranks, const void* out, int64_t bytes, void* in) {
  comm::BlockLists blocks;
  for (int peer = 0; peer < num_ranks; ++peer) {
    void* to = in == nullptr ? nullptr : static_cast<std::byte*>(in) + peer * bytes;
    blocks.add({peer, out, bytes}, {peer, to, bytes});
  }
  return blocks;
}

void signal_all(Group& group, const Window& window, int64_t number) {
  for (int peer = 0; peer < group.size(); ++peer) {
    word_of(window, peer, group.rank()).store(number, std::memory_order_release);
  }
  for (int peer = 0; peer < group.size(); ++peer) {
    if (!group.is_dead(peer)) {
      const auto signal = word_of(window, group.rank(), peer);
      group.wait_until(
          "round", peer, [&] { return signal.load(std::memory_order_acquire) >= number; },
          [&] { return fmt::format("expected signal {}", number); });
    }
  }
}

}  // namespace moebius::testing
