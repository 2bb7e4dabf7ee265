// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// PeerGroup: what the groups share: the life of a call, waiting with a deadline, and how failures
// become errors that read the same everywhere.  docs/protocol.md tells the whole.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

// One collective call of this rank, or a one-sided wait between two of them.
struct Call {
  std::string_view op;
  int64_t epoch = 0;
};

// Why a group cannot go on, as the rank that found out tells the others.
struct Failure {
  int author = 0;         // who found out
  int guilty = -1;        // whom it blames, -1 when nobody can be named
  int64_t epoch = 0;      // of the author's call
  std::string op;         // of the author's call
  std::string guilty_op;  // where both were in different calls of this epoch: the other's op
  std::string reason;     // "rank 2 has left", names the guilty
};

// "rank 2 is in "combine" at epoch 5, expected "dispatch""
Failure make_mismatch(int author, const Call& call, int guilty, std::string_view guilty_op);

class PeerGroup : public Group {
 public:
  void barrier(std::string_view op) final { start_exchange(op, {}, {}, {})->wait(); }
  std::unique_ptr<Exchange> start_exchange(std::string_view op,
                                           std::span<const SendBlock> sends,
                                           std::span<const RecvBlock> recvs,
                                           BlockReader reader) final;
  std::unique_ptr<Window> make_window(std::string_view op, int64_t bytes) final;
  void wait_until(std::string_view op,
                  int peer,
                  const std::function<bool()>& ready,
                  const std::function<std::string()>& describe) final;
  void abort(std::string_view why) noexcept final;
  void set_dead(int rank, bool dead) final;
  bool is_dead(int rank) const final { return dead_[static_cast<size_t>(rank)]; }
  std::chrono::nanoseconds waited() const final { return waited_; }

  // Waits of one call.  `done` ends it; `is_missing` says who stands in its way and `describe` what
  // was expected of them and seen: "expected 3 blocks, seen none".
  struct Wait {
    Call call;
    std::function<bool()> done;
    std::function<bool(int peer)> is_missing;
    std::function<std::string(int peer)> describe;
  };
  void wait_for(const Wait& wait);
  // One step of the same: true when done, else throws if it never will be.
  bool check(const Wait& wait);

  // Breaks this group: tells the peers and throws.
  [[noreturn]] void fail(const Call& call, Failure failure);
  // Breaks this group from a destructor.  The peers learn of it now, or, while an exception unwinds
  // that may tell them more, with the next call or abort().
  void abandon(const Call& call) noexcept;

 protected:
  PeerGroup(Topology topology, std::chrono::milliseconds timeout, int num_neighbours, int num_cpus);

  // Starts a collective call: throws if the group cannot go on, else counts the epoch.
  Call enter(std::string_view op);
  // Tells the peers what has been kept from them so far; the last thing a rank does.
  void tell_untold() noexcept;
  bool is_broken() const { return broken_.has_value(); }

  // What the groups do in their own way.

  virtual std::unique_ptr<Exchange> post_exchange(const Call& call,
                                                  std::span<const SendBlock> sends,
                                                  std::span<const RecvBlock> recvs,
                                                  BlockReader reader) = 0;
  virtual std::unique_ptr<Window> map_window(std::string_view op, int64_t bytes) = 0;
  // Moves every started exchange forward; may fail().
  virtual void progress() = 0;
  // The i-th failure that any rank has told, own ones included; nullopt beyond the last.
  virtual std::optional<Failure> told_failure(size_t i) = 0;
  virtual void tell_failure(const Failure& failure) = 0;
  // The peer will make no further call.
  virtual bool has_left(int peer) const = 0;
  // Whom the peer waits for, -1 when it waits for nobody or cannot be looked at.
  virtual int waits_for(int) const { return -1; }
  // That this rank waits for `peer` in `op`; -1: for nobody any more.
  virtual void show_waiting(int /*peer*/, std::string_view /*op*/) {}
  // "at epoch 4 (layout), waiting for rank 1 in dispatch", empty when it cannot be looked at.
  virtual std::string whereabouts(int) const { return {}; }

 private:
  void throw_if_failed(const Call& call);
  [[noreturn]] void fail_late(const Wait& wait);
  CommError make_error(const Call& call, const Failure& failure) const;

  int num_neighbours_;  // ranks that share num_cpus_
  int num_cpus_;
  std::chrono::nanoseconds waited_{0};
  size_t num_seen_ = 0;  // failures looked at and passed over
  std::vector<bool> dead_;
  std::string last_op_ = "start";
  std::optional<CommError> broken_;
  std::optional<Failure> cause_;  // of broken_, where another rank told it
  std::optional<Failure> untold_;
};

// Collective: throws InvalidArgument unless every rank asks for a window of as many bytes.
void agree_on_window(Group& group, std::string_view op, int64_t bytes);

// The timeout of options: as given, or from the settings.
std::chrono::milliseconds resolve_timeout(std::chrono::milliseconds wanted);

}  // namespace moebius::comm
