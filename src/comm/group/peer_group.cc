// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/peer_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "comm/group/blocks.h"
#include "comm/group/node_memory.h"
#include "comm/group/peer_exchange.h"
#include "comm/group/started.h"
#include "core/awake_deadline.h"
#include "core/backoff.h"
#include "core/interrupt.h"
#include "moebius/deadline.h"
#include "moebius/log.h"
#include "moebius/profile.h"

namespace moebius::comm {

namespace {

// Two ranks in different calls blame each other.  The one that differs from this rank is wrong.
// When this rank is in another epoch it cannot tell which one that is.
Failure judge_mismatch(const Call& call, const Failure& told) {
  const OpName own(call.op);  // cut as theirs are
  const bool can_tell = told.epoch == call.epoch;
  if (can_tell && told.guilty_op.view() == own.view()) {
    return make_mismatch(told.author, call, told.author, told.op.view());
  }
  Failure failure = told;
  if (!can_tell || told.op.view() != own.view()) {
    failure.reason = Failure::Reason::format(
        "rank {} is in \"{}\" and rank {} is in \"{}\" at epoch {}", told.guilty,
        told.guilty_op.view(), told.author, told.op.view(), told.epoch);
  }
  return failure;
}

}  // namespace

std::chrono::milliseconds resolve_timeout(std::chrono::milliseconds wanted) {
  expect_ge(wanted.count(), 0, "timeout in ms");
  expect_le(wanted.count(), std::chrono::milliseconds(Deadline::kMaxTimeout).count(),
            "timeout in ms");
  // Some time passes until remaining() is asked; rounding up gives the setting's milliseconds.
  return wanted.count() > 0
             ? wanted
             : std::chrono::ceil<std::chrono::milliseconds>(Deadline::from_settings().remaining());
}

void agree_on_window(Group& group, std::string_view op, int64_t bytes) {
  expect_ge(bytes, 0, "bytes of a window");
  std::vector<int64_t> wanted(static_cast<size_t>(group.size()));
  all_gather_bytes(group, op, &bytes, sizeof(bytes), wanted.data());
  for (int peer = 0; peer < group.size(); ++peer) {
    expect_eq(wanted[static_cast<size_t>(peer)], wanted[0],
              fmt::format("{}: bytes of the window asked for by rank {}, after rank 0,", op, peer));
  }
}

PeerGroup::PeerGroup(Topology topology,
                     std::chrono::milliseconds timeout,
                     int num_neighbours,
                     int num_cpus)
    : Group(std::move(topology), timeout),
      num_neighbours_(num_neighbours),
      num_cpus_(num_cpus),
      dead_(static_cast<size_t>(size()), false) {
  constexpr size_t kFew = 8;
  failures_.reserve(kFew);  // so that those told when memory has run out need none
}

Call PeerGroup::enter(std::string_view op) {
  throw_if_failed({op, epoch_ + 1});
  progress();
  throw_if_failed({op, epoch_ + 1});
  const auto given_up = std::find(dead_.begin(), dead_.end(), true);
  if (given_up != dead_.end()) {
    const int peer = static_cast<int>(given_up - dead_.begin());
    throw CommError(fmt::format("rank {}: {}, epoch {}: rank {} is given up, and collective calls "
                                "need every rank{}",
                                rank(), op, epoch_ + 1, peer, whose_numbers({rank(), peer})),
                    rank(), peer);
  }
  last_op_ = op;
  return {op, ++epoch_};
}

std::unique_ptr<Exchange> PeerGroup::start_exchange(std::string_view op,
                                                    std::span<const SendBlock> sends,
                                                    std::span<const RecvBlock> recvs,
                                                    BlockReader reader) {
  expect_blocks_valid(sends, size(), true);
  expect_blocks_valid(recvs, size(), !reader);
  const Call call = enter(op);
  if (!reader) {
    for (const SendBlock& block : sends) {
      count_traffic(block.peer, block.bytes);
    }
  }
  return post_exchange(call, {sends, recvs, std::move(reader)});
}

std::unique_ptr<Window> PeerGroup::make_window(std::string_view op, int64_t bytes) {
  agree_on_window(*this, op, bytes);
  return map_window(op, bytes);
}

std::unique_ptr<Group> PeerGroup::split(int color, int key) {
  constexpr std::string_view kOp = "split";
  const SplitWish wish{color, key};
  std::vector<SplitWish> wishes(static_cast<size_t>(size()));
  all_gather_bytes(*this, kOp, &wish, sizeof(wish), wishes.data());
  const SubGroup sub = plan_split(topology(), wishes);
  std::unique_ptr<PeerGroup> group = make_sub_group(sub);
  if (group) {
    for (const int member : sub.members) {
      group->original_ranks_.push_back(original_rank(member));
    }
  }
  return group;
}

std::unique_ptr<Window> PeerGroup::map_window(std::string_view op, int64_t bytes) {
  return map_node_memory(*this, op, bytes);
}

void PeerGroup::wait_until(std::string_view op,
                           int peer,
                           const std::function<bool()>& ready,
                           const std::function<std::string()>& describe) {
  expect_ge(peer, 0, "peer");
  expect_le(peer, size() - 1, "peer");
  if (is_broken()) {
    throw_if_failed({op, epoch_});
  }
  bool is_ready = false;
  wait_for({{op, epoch_},
            [&] { return is_ready = is_ready || ready(); },
            [&](int p) { return p == peer && !is_ready; },
            [&](int) { return describe(); }});
}

bool PeerGroup::check(const Wait& wait) {
  progress();
  if (wait.done()) {
    return true;
  }
  if (hears_of_failure()) {
    // A call that ended on a rank that failed afterwards is to end here, too, and what it needs may
    // have arrived since.
    progress();
    if (wait.done()) {
      return true;
    }
    throw_heard(wait.call);
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (has_left(peer) && !is_dead(peer) && wait.is_missing(peer)) {
      // What the peer did and told before it left may have arrived since the first look.
      progress();
      if (wait.done()) {
        return true;
      }
      throw_if_failed(wait.call);
      if (wait.is_missing(peer)) {
        fail_silence(wait.call, peer,
                     Failure::Reason::format("rank {} has left; {}", peer, wait.describe(peer)));
      }
    }
  }
  return false;
}

void PeerGroup::wait_for(const Wait& wait) {
  if (check(wait)) {
    return;
  }
  AwakeDeadline deadline(timeout_);
  Backoff backoff(num_neighbours_, num_cpus_);
  // Its destructor also runs when an exception leaves this function.
  struct Shown {
    PeerGroup* group;
    Deadline::Clock::time_point begin;
    int peer = -1;
    ~Shown() {
      const auto end = Deadline::Clock::now();
      group->waited_ += end - begin;
      if (group->profile_ != nullptr) {
        try {
          group->profile_->add_wait(begin, end);
        } catch (const std::exception& error) {  // out of memory
          log(LogLevel::kError, error.what());
        }
      }
      group->show_waiting(-1, {});
    }
  } shown{this, Deadline::Clock::now()};
  InterruptWatch interrupt;
  while (!check(wait)) {
    if (deadline.expired()) {
      return fail_late(wait);
    }
    if (interrupt.wants_end()) {
      fail(wait.call, rank(), Failure::Reason::format("rank {} was interrupted", rank()));
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (wait.is_missing(peer)) {
        if (std::exchange(shown.peer, peer) != peer) {
          show_waiting(peer, wait.call.op);
        }
        break;
      }
    }
    backoff.pause();
  }
}

void PeerGroup::fail_silence(const Call& call, int guilty, const Failure::Reason& reason) {
  Failure failure = make_failure(rank(), call, guilty, reason);
  failure.is_silence = true;
  fail(call, failure);
}

void PeerGroup::fail_late(const Wait& wait) {
  // A rank that is missing may itself wait for another.  Those at the end of such chains are
  // blamed, and a chain ends at a process that is stopped.
  std::string reason;
  int guilty = -1;
  std::vector<bool> blamed(static_cast<size_t>(size()), false);
  for (int peer = 0; peer < size(); ++peer) {
    if (!wait.is_missing(peer)) {
      continue;
    }
    int last = peer;
    for (int steps = 0; steps < size(); ++steps) {
      const std::optional<PeerSight> sight = look_at(last);
      const int next = sight && !sight->is_stopped ? sight->waits_for : -1;
      if (next < 0 || next == rank()) {
        break;
      }
      // A circle of other ranks has no end; its members report it themselves.
      last = steps + 1 < size() ? next : peer;
    }
    if (blamed[static_cast<size_t>(last)]) {
      continue;
    }
    blamed[static_cast<size_t>(last)] = true;
    reason += fmt::format("{}rank {} did not come within {} ms", reason.empty() ? "" : "; ", last,
                          timeout_.count());
    if (last != peer) {
      reason += fmt::format(" (rank {} waits for it)", peer);
    }
    reason += ", " + wait.describe(peer);
    if (const std::optional<PeerSight> sight = look_at(last)) {
      reason += fmt::format("; it is at epoch {} ({}), waiting for {}", sight->epoch, sight->op,
                            sight->waits_for < 0
                                ? "nobody"
                                : fmt::format("rank {} in {}", sight->waits_for, sight->waits_in));
      reason += sight->is_stopped ? "; its process is stopped" : "";
    }
    guilty = guilty < 0 ? last : guilty;
  }
  // A rank whose own deadline expired meanwhile may have been seen to wait for nobody any more; it
  // told why before.
  if (check(wait)) {
    return;
  }
  fail_silence(wait.call, guilty,
               std::string_view(reason.empty() ? "timed out, and nobody is missing" : reason));
}

void PeerGroup::advance_started() {
  comm::advance_started(started_, [](PeerExchange& exchange) { return exchange.advance(); });
}

void PeerGroup::wait_for_oldest(const Call& call) {
  if (!started_.empty() && started_.front()->epoch() + kMaxStarted <= call.epoch) {
    started_.front()->wait();
  }
}

std::string PeerGroup::whose_numbers(std::initializer_list<int> ranks) const {
  std::string text;
  for (auto at = ranks.begin(); at != ranks.end() && !original_ranks_.empty(); ++at) {
    if (*at >= 0 && std::find(ranks.begin(), at, *at) == at) {
      text += fmt::format("{}rank {} is rank {}", text.empty() ? " (in a sub-group: " : ", ", *at,
                          original_rank(*at));
    }
  }
  return text.empty() ? text : text + " of the group that was split)";
}

CommError PeerGroup::make_error(const Call& call, const Failure& failure) const {
  std::string message =
      fmt::format("rank {}: {}, epoch {}: {}", rank(), call.op, call.epoch, failure.reason.view());
  if (failure.author != rank() && failure.author != failure.guilty) {
    message += fmt::format(" (found by rank {} in {}, epoch {})", failure.author, failure.op.view(),
                           failure.epoch);
  }
  message += whose_numbers({rank(), failure.guilty, failure.author});
  return CommError(message, rank(), failure.guilty, failure.is_silence);
}

bool PeerGroup::hears_of_failure() {
  tell_untold();
  if (!broken_) {
    hear_failures();
  }
  return broken_ || num_seen_ < failures_.size();
}

void PeerGroup::throw_if_failed(const Call& call) {
  if (hears_of_failure()) {
    throw_heard(call);
  }
}

void PeerGroup::throw_heard(const Call& call) {
  if (broken_) {
    throw CommError(*broken_);
  }
  for (; num_seen_ < failures_.size(); ++num_seen_) {
    const Failure& failure = failures_[num_seen_];
    if (is_dead(failure.author) || (failure.guilty >= 0 && is_dead(failure.guilty))) {
      continue;
    }
    broken_ = make_error(call, failure.guilty_op.empty() ? failure : judge_mismatch(call, failure));
    // As it was told, since whoever hears it from here judges it for a call of its own.
    cause_ = failure;
    throw CommError(*broken_);
  }
}

void PeerGroup::fail(const Call& call, const Failure& failure) {
  if (!broken_) {
    tell_failure(failure);
    broken_ = make_error(call, failure);
  }
  throw CommError(*broken_);
}

void PeerGroup::abandon(const Call& call) noexcept {
  if (broken_) {
    return;
  }
  const Failure failure = make_failure(
      rank(), call, rank(),
      Failure::Reason::format("rank {} abandoned {} at epoch {}", rank(), call.op, call.epoch));
  untold_ = failure;
  if (std::uncaught_exceptions() == 0) {
    tell_untold();
  }
  try {
    broken_ = make_error(call, failure);
  } catch (const std::exception& error) {
    // Out of memory.  The next call hears of this failure as those of others do.
    log(LogLevel::kError, error.what());
  }
}

void PeerGroup::tell_untold() noexcept {
  if (!untold_) {
    return;
  }
  try {
    tell_failure(*untold_);
    untold_.reset();
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

void PeerGroup::tell_cause() noexcept {
  try {
    if (broken_ && cause_ && cause_->author != rank()) {
      tell_failure(*cause_);
    }
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

void PeerGroup::abort(std::string_view why) noexcept {
  try {
    const Call call{last_op_, epoch_};
    const Failure failure = make_failure(
        rank(), call, rank(), Failure::Reason::format("rank {} failed: {}", rank(), why));
    untold_.reset();
    tell_cause();
    tell_failure(failure);
    if (!broken_) {
      broken_ = make_error(call, failure);
    }
  } catch (const std::bad_alloc&) {  // the peers have been told
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

bool PeerGroup::is_missed() noexcept {
  try {
    progress();
    progress();  // MPI looks for messages before it moves them
    hear_failures();
  } catch (const std::exception&) {  // what has come before it counts
  }
  return std::any_of(failures_.begin(), failures_.end(), [this](const Failure& failure) {
    return failure.is_silence && failure.guilty == rank();
  });
}

void PeerGroup::set_dead(int peer, bool dead) {
  expect_ge(peer, 0, "rank");
  expect_le(peer, size() - 1, "rank");
  expect(!dead || peer != rank(), "a rank cannot give itself up");
  dead_[static_cast<size_t>(peer)] = dead;
  num_seen_ = 0;
  if (dead && broken_ && (broken_->peer() == peer || (cause_ && cause_->author == peer))) {
    broken_.reset();
    cause_.reset();
  }
}

}  // namespace moebius::comm
