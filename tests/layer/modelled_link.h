// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ModelledGroup: a group whose links are slow by a made-up clock.  Each rank has a clock of its
// own. It advances by the time that the rank says it computes, and jumps to the arrival of a
// message that the rank waits for.  So the time that a rank waits follows from the order of its
// calls alone, even on a busy machine.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "moebius/group.h"

namespace moebius::testing {

using ModelTime = std::chrono::nanoseconds;

class ModelClock {
 public:
  ModelTime now() const { return now_; }
  ModelTime waited() const { return waited_; }
  void compute(ModelTime time) { now_ += time; }
  void wait_until(ModelTime due) {
    waited_ += std::max(due - now_, ModelTime(0));
    now_ = std::max(due, now_);
  }

 private:
  ModelTime now_{0};
  ModelTime waited_{0};
};

// The messages under way, which all ranks of a job share.
class ModelledLinks {
 public:
  explicit ModelledLinks(SlowLink speed) : speed_(speed) {}

  // When a message that is sent now arrives, by the latency and bandwidth of the link.  Large
  // messages go one after the other: `free` is when the link is free again.
  ModelTime arrival(ModelTime now, int64_t bytes, ModelTime& free) const {
    constexpr int64_t kSmallBytes = 4096;
    const bool is_large = bytes > kSmallBytes;
    const ModelTime left = (is_large ? std::max(now, free) : now) +
                           ModelTime(bytes * 1'000'000'000 / speed_.bytes_per_second);
    free = is_large ? left : free;
    return left + speed_.latency;
  }

  struct Signal {
    int64_t window = 0;  // its number; all ranks make windows in the same order
    int64_t offset = 0;
    int64_t value = 0;
    ModelTime due{0};
  };
  struct Link {
    std::map<int64_t, ModelTime> exchanges;  // arrival, by epoch
    std::deque<Signal> signals;
  };
  // Calls f(Link&) for the link between two ranks.
  template <typename F>
  auto with_link(int from, int to, F&& f) {
    const std::lock_guard lock(mutex_);
    return f(links_[{from, to}]);
  }

 private:
  SlowLink speed_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, Link> links_;
};

// Wraps a group of one node whose own links are not slow.
class ModelledGroup final : public Group {
 public:
  ModelledGroup(Group& base, ModelledLinks& links)
      : Group(base.topology(), base.timeout()),
        base_(base),
        links_(links),
        outgoing_(static_cast<size_t>(size())) {}

  ModelClock& clock() { return clock_; }

  std::string_view name() const override { return base_.name(); }
  int64_t epoch() const override { return base_.epoch(); }
  Traffic traffic() const override { return base_.traffic(); }
  std::chrono::nanoseconds waited() const override { return clock_.waited(); }
  bool shares_address_space() const override { return base_.shares_address_space(); }
  void abort(std::string_view why) noexcept override { base_.abort(why); }
  void set_dead(int rank, bool dead) override { base_.set_dead(rank, dead); }
  bool is_dead(int rank) const override { return base_.is_dead(rank); }
  void count_traffic(int peer, int64_t bytes) override {
    base_.count_traffic(peer, bytes);
    outgoing_[static_cast<size_t>(peer)].bytes += bytes;
  }
  // The base reports bytes.  The waits that it reports are not by the made-up clock.
  void set_profile(Profile* profile) override { base_.set_profile(profile); }
  void barrier(std::string_view op) override { exchange(op, {}, {}); }

  std::unique_ptr<Exchange> start_exchange(std::string_view op,
                                           std::span<const SendBlock> sends,
                                           std::span<const RecvBlock> recvs,
                                           BlockReader reader = {}) override {
    if (!reader) {
      for (const SendBlock& block : sends) {
        outgoing_[static_cast<size_t>(block.peer)].bytes += block.bytes;
      }
    }
    const int64_t epoch = base_.epoch() + 1;
    for (int peer = 0; peer < size(); ++peer) {
      const ModelTime due = send(peer);
      links_.with_link(rank(), peer, [&](auto& link) { link.exchanges[epoch] = due; });
    }
    return std::make_unique<ModelledExchange>(
        *this, epoch, base_.start_exchange(op, sends, recvs, std::move(reader)));
  }

  std::unique_ptr<Window> make_window(std::string_view op, int64_t bytes) override {
    auto window = std::make_unique<ModelledWindow>(*this, static_cast<int64_t>(windows_.size()),
                                                   base_.make_window(op, bytes));
    windows_.push_back(window->local());
    return window;
  }

  void wait_until(std::string_view op,
                  int peer,
                  const std::function<bool()>& ready,
                  const std::function<std::string()>& describe) override {
    // Signals of a peer are seen in the order in which it gave them, each when it arrives.
    const auto see = [&] {
      while (!ready()) {
        if (!take_signal(peer)) {
          return false;
        }
      }
      return true;
    };
    base_.wait_until(op, peer, see, describe);
  }

 private:
  class ModelledExchange final : public Exchange {
   public:
    ModelledExchange(ModelledGroup& group, int64_t epoch, std::unique_ptr<Exchange> base)
        : group_(group), epoch_(epoch), base_(std::move(base)) {}
    bool test() override { throw Error("what has arrived by now depends on the machine"); }
    void wait() override {
      base_->wait();
      for (int peer = 0; peer < group_.size(); ++peer) {
        group_.clock_.wait_until(group_.links_.with_link(
            peer, group_.rank(), [&](auto& link) { return link.exchanges.at(epoch_); }));
      }
    }

   private:
    ModelledGroup& group_;
    int64_t epoch_;
    std::unique_ptr<Exchange> base_;
  };

  class ModelledWindow final : public Window {
   public:
    ModelledWindow(ModelledGroup& group, int64_t index, std::unique_ptr<Window> base)
        : group_(group), index_(index), base_(std::move(base)) {}
    int64_t bytes() const override { return base_->bytes(); }
    std::byte* local() const override { return base_->local(); }
    std::byte* peer(int rank) const override { return base_->peer(rank); }
    void signal(int rank, int64_t offset, int64_t value) override {
      const ModelTime due = group_.send(rank);
      group_.links_.with_link(group_.rank(), rank, [&](auto& link) {
        link.signals.push_back({index_, offset, value, due});
      });
    }

   private:
    ModelledGroup& group_;
    int64_t index_;
    std::unique_ptr<Window> base_;
  };

  // Sends the bytes that wait to leave for the peer, and returns when they arrive there.
  ModelTime send(int peer) {
    Outgoing& out = outgoing_[static_cast<size_t>(peer)];
    const int64_t bytes = std::exchange(out.bytes, 0);
    return peer == rank() ? clock_.now() : links_.arrival(clock_.now(), bytes, out.free);
  }

  // Stores the next signal of the peer; false when there is none yet.
  bool take_signal(int peer) {
    return links_.with_link(peer, rank(), [&](auto& link) {
      if (link.signals.empty()) {
        return false;
      }
      const ModelledLinks::Signal signal = link.signals.front();
      link.signals.pop_front();
      clock_.wait_until(signal.due);
      std::byte* const word = windows_.at(static_cast<size_t>(signal.window)) + signal.offset;
      std::atomic_ref(*reinterpret_cast<int64_t*>(word)).store(signal.value);
      return true;
    });
  }

  struct Outgoing {
    int64_t bytes = 0;  // to leave with the next message
    ModelTime free{0};  // when all large messages so far have left
  };

  Group& base_;
  ModelledLinks& links_;
  ModelClock clock_;
  std::vector<Outgoing> outgoing_;   // by peer
  std::vector<std::byte*> windows_;  // this rank's part of each
};

}  // namespace moebius::testing
