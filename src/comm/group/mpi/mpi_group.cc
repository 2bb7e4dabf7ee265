// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/mpi/mpi_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "comm/group/mpi/loaded_mpi.h"
#include "comm/group/mpi/mpi_exchange.h"
#include "moebius/deadline.h"
#include "moebius/log.h"

namespace moebius::comm {

MpiGroup::MpiGroup(MpiComm comm,
                   std::shared_ptr<MpiLibrary> library,
                   MeetingPlace place,
                   Topology topology,
                   std::chrono::milliseconds timeout,
                   int num_neighbours,
                   int num_cpus)
    : PeerGroup(topology, timeout, num_neighbours, num_cpus),
      comm_(comm),
      library_(std::move(library)),
      place_(std::move(place)),
      exceptions_at_start_(std::uncaught_exceptions()),
      has_left_(static_cast<size_t>(topology.size), false),
      told_(static_cast<size_t>(topology.size)) {
  constexpr size_t kSpareNotices = 4;
  sent_notices_.resize(kSpareNotices);
  for (SentNotice& sent : sent_notices_) {
    sent.requests.resize(static_cast<size_t>(size()), mpi().no_request);
  }
  mpi().return_errors(comm_);
}

MpiGroup::~MpiGroup() {
  if (!is_broken() && std::uncaught_exceptions() > exceptions_at_start_) {
    abort("an exception left the scope of its group");
  }
  tell_untold();
  tell_cause();
  // Ranks of a part that has failed must not wait for each other, since they are to report that to
  // the whole group.
  const bool awaits_peers = !(is_broken() && is_part());
  if (is_over_ ? !is_mpi_poisoned() : awaits_peers && wait_for_peers_to_leave()) {
    within_deadline("MPI_Comm_free", timeout_, place_, [&] { mpi().free(&comm_); });
  } else if (library_) {
    library_->give_up();
  }
  for (KeptSend& send : kept_sends_) {
    if (send.request != mpi().no_request) {
      (void)send.buffer.release();  // leaked: MPI may still read it
    }
  }
  if (std::any_of(sent_notices_.begin(), sent_notices_.end(),
                  [](const SentNotice& sent) { return sent.is_under_way; })) {
    (void)new std::deque<SentNotice>(std::move(sent_notices_));  // leaked, too
  }
}

void MpiGroup::leave() {
  const Call call = enter("leave");
  tell_left();
  has_left_[static_cast<size_t>(rank())] = true;
  wait_for({call,
            [&] { return std::find(has_left_.begin(), has_left_.end(), false) == has_left_.end(); },
            [&](int peer) { return !has_left_[static_cast<size_t>(peer)]; },
            [](int) { return std::string("expected to leave"); }});
  is_over_ = true;
}

// True when all ranks have left and nothing failed, so that MPI's next calls cannot wait in vain.
bool MpiGroup::wait_for_peers_to_leave() {
  try {
    if (!is_mpi_poisoned()) {
      tell_left();
    }
    const Deadline deadline = Deadline::after(timeout_);
    while (!is_mpi_poisoned() && !deadline.expired()) {
      receive_notices();
      drop_finished_sends();
      std::vector<bool> is_gone = has_left_;
      is_gone[static_cast<size_t>(rank())] = true;
      bool is_healthy = failures_.empty();
      for (int peer = 0; peer < size(); ++peer) {
        if (is_dead(peer)) {
          is_gone[static_cast<size_t>(peer)] = true;
          is_healthy = false;
        }
      }
      for (const Failure& failure : failures_) {
        if (failure.guilty >= 0) {
          is_gone[static_cast<size_t>(failure.guilty)] = true;
        }
      }
      if (std::find(is_gone.begin(), is_gone.end(), false) == is_gone.end() &&
          (kept_sends_.empty() || !is_healthy)) {
        return is_healthy && !is_broken();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (is_mpi_poisoned()) {
      // The others have been told of the failure.  They need time to report it, since the launcher
      // may end them once this process is gone.
      constexpr std::chrono::milliseconds kGrace{500};
      std::this_thread::sleep_for(kGrace);
    } else {
      log(is_broken() ? LogLevel::kInfo : LogLevel::kWarn,
          fmt::format("rank {}: not every rank has left within {} ms", rank(), timeout_.count()));
    }
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
  return false;
}

std::unique_ptr<Exchange> MpiGroup::post_exchange(const Call& call, ExchangeBlocks blocks) {
  wait_for_oldest(call);  // epochs that share a tag must not be under way together
  return std::make_unique<MpiExchange>(*this, call, std::move(blocks));
}

void MpiGroup::progress() {
  if (is_mpi_poisoned()) {
    return;
  }
  advance_started();
  receive_notices();
  tell_waiting();
  drop_finished_sends();
}

void MpiGroup::tell_left() {
  send_notice({.kind = Notice::kLeft, .failure = {}, .waiting = {}});
}

void MpiGroup::end_with_mpi() noexcept {
  tell_untold();
  try {
    tell_left();
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
  poison_mpi();
}

// Another group of this process may have been why.
void MpiGroup::hear_failures() {
  if (is_mpi_poisoned() && !std::exchange(has_heard_of_poison_, true)) {
    failures_.push_back(make_failure(rank(), {last_op(), epoch_}, rank(),
                                     Failure::Reason::format("rank {} {}", rank(), kIsPoisoned)));
  }
}

void MpiGroup::tell_failure(const Failure& failure) {
  failures_.push_back(failure);
  if (!is_mpi_poisoned()) {
    send_notice({.kind = Notice::kFailure, .failure = failure, .waiting = {}});
  }
}

void MpiGroup::send_notice(const Notice& notice) {
  auto sent = std::find_if(sent_notices_.begin(), sent_notices_.end(),
                           [](const SentNotice& each) { return !each.is_under_way; });
  if (sent == sent_notices_.end()) {
    sent = sent_notices_.emplace(sent);
    sent->requests.resize(static_cast<size_t>(size()), mpi().no_request);
  }
  sent->notice = notice;
  sent->is_under_way = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && !is_dead(peer)) {
      mpi_check(mpi().isend(comm_, &sent->notice, sizeof(notice), peer, kNoticeTag,
                            &sent->requests[static_cast<size_t>(peer)]),
                "MPI_Isend", rank());
    }
  }
}

void MpiGroup::receive_notices() {
  for (;;) {
    int peer = -1;
    mpi_check(mpi().probe(comm_, kNoticeTag, &peer), "MPI_Iprobe", rank());
    if (peer < 0) {
      return;
    }
    Notice notice;
    mpi_check(mpi().recv(comm_, &notice, sizeof(notice), peer, kNoticeTag), "MPI_Recv", rank());
    const auto source = static_cast<size_t>(peer);
    switch (notice.kind) {
      case Notice::kLeft:
        has_left_[source] = true;
        break;
      case Notice::kWaiting:
        told_[source] = notice.waiting;
        break;
      default:
        failures_.push_back(notice.failure);
    }
  }
}

void MpiGroup::drop_finished_sends() {
  std::erase_if(kept_sends_, [](KeptSend& send) {
    int is_over = 0;
    mpi().test(&send.request, &is_over);
    return is_over != 0;
  });
  for (SentNotice& sent : sent_notices_) {
    if (sent.is_under_way) {
      int are_over = 0;
      mpi().test_all(size(), sent.requests.data(), &are_over);
      sent.is_under_way = are_over == 0;
    }
  }
}

std::optional<PeerSight> MpiGroup::look_at(int peer) const {
  const Waiting& told = told_[static_cast<size_t>(peer)];
  if (told.waits_for < 0) {
    return std::nullopt;
  }
  return PeerSight{told.epoch, std::string(told.op.view()), told.waits_for,
                   std::string(told.waits_in.view())};
}

void MpiGroup::show_waiting(int peer, std::string_view op) {
  own_ = {.epoch = epoch_, .op = last_op(), .waits_for = peer, .waits_in = op};
  waits_since_ = Deadline::Clock::now();
  try {
    tell_waiting();
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

// A message to every peer would cost more than most waits.  But when a deadline expires, a rank has
// to know who of those that are missing waits, too.
void MpiGroup::tell_waiting() {
  const bool is_long = Deadline::Clock::now() - waits_since_ > timeout_ / 8;
  const int news = is_long ? own_.waits_for : -1;
  if (news != std::exchange(told_waits_for_, news) && !is_mpi_poisoned()) {
    Notice notice{.kind = Notice::kWaiting, .failure = {}, .waiting = own_};
    notice.waiting.waits_for = news;
    send_notice(notice);
  }
}

std::unique_ptr<PeerGroup> MpiGroup::make_sub_group(const SubGroup& sub) {
  // MPI waits here without a deadline.  A rank that gave up in the call that gathered the wishes
  // may have been counted there, and is then missed in the barrier.
  barrier("split");
  MpiComm comm;
  within_deadline("MPI_Comm_split", timeout_, place_, [&] {
    mpi_check(mpi().split(comm_, sub.is_none() ? -1 : sub.first(), sub.topology.rank, &comm),
              "MPI_Comm_split", rank());
  });
  return sub.is_none() ? nullptr
                       : std::make_unique<MpiGroup>(comm, library_, place_, sub.topology, timeout_,
                                                    num_neighbours(), num_cpus());
}

}  // namespace moebius::comm
