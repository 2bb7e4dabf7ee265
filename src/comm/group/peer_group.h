// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// PeerGroup: what the groups share: the life of a call, waiting with a deadline, and how failures
// become errors that read the same on every rank.  docs/protocol.md has the protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group/failure.h"
#include "comm/group/split.h"
#include "moebius/group.h"

namespace moebius::comm {

// What one exchange moves; see Group::start_exchange().
struct ExchangeBlocks {
  std::span<const SendBlock> sends;
  std::span<const RecvBlock> recvs;
  BlockReader reader;
};

// What a rank can see of a peer that makes no call with it.
struct PeerSight {
  int64_t epoch = 0;        // of the peer's newest call
  std::string op;           // of the same call
  int waits_for = -1;       // the rank it waits for; -1: nobody
  std::string waits_in;     // the operation it waits in
  bool is_stopped = false;  // its process is, so it may have waited for somebody who has come
};

class PeerExchange;

class PeerGroup : public Group {
 public:
  void barrier(std::string_view op) final { start_exchange(op, {}, {}, {})->wait(); }
  std::unique_ptr<Exchange> start_exchange(std::string_view op,
                                           std::span<const SendBlock> sends,
                                           std::span<const RecvBlock> recvs,
                                           BlockReader reader) final;
  std::unique_ptr<Window> make_window(std::string_view op, int64_t bytes) final;
  std::unique_ptr<Group> split(int color, int key) final;
  void wait_until(std::string_view op,
                  int peer,
                  const std::function<bool()>& ready,
                  const std::function<std::string()>& describe) final;
  void abort(std::string_view why) noexcept final;
  bool is_missed() noexcept final;
  void set_dead(int rank, bool dead) final;
  bool shares_address_space() const override { return false; }
  bool is_dead(int rank) const final { return dead_[static_cast<size_t>(rank)]; }
  std::chrono::nanoseconds waited() const final { return waited_; }

  // A wait within a call.  It ends when done() is true.  is_missing(peer) says whether the peer
  // holds it up, and describe(peer) what was expected of the peer: "expected 3 blocks, seen none".
  struct Wait {
    Call call;
    std::function<bool()> done;
    std::function<bool(int peer)> is_missing;
    std::function<std::string(int peer)> describe;
  };
  // Blocks until the wait is done, at most for the timeout; then fails the group.
  void wait_for(const Wait& wait);
  // Makes one step of the wait.  True when it is done; throws when it never will be.
  bool check(const Wait& wait);

  // The ranks that share the CPUs of this one, itself included.
  int num_neighbours() const { return num_neighbours_; }
  int num_cpus() const { return num_cpus_; }

  // Breaks this group: tells the peers and throws.
  [[noreturn]] void fail(const Call& call, const Failure& failure);
  [[noreturn]] void fail(const Call& call, int guilty, const Failure::Reason& reason) {
    fail(call, make_failure(rank(), call, guilty, reason));
  }
  // Breaks this group from a destructor.  The peers learn of it now.  While an exception unwinds,
  // which may tell them more, they learn of it with the next call or abort().
  void abandon(const Call& call) noexcept;

 protected:
  PeerGroup(Topology topology, std::chrono::milliseconds timeout, int num_neighbours, int num_cpus);

  // Starts a collective call: counts the epoch.  Throws when the group cannot go on.
  Call enter(std::string_view op);
  // Tells the peers of a failure that abandon() has kept back.  Destructors call it first.
  void tell_untold() noexcept;
  // Tells the failure of another rank that has broken this group.  One that has not heard of it yet
  // must not take what follows from it for the cause.
  void tell_cause() noexcept;
  bool is_broken() const { return broken_.has_value(); }
  bool is_part() const { return !original_ranks_.empty(); }  // split() has made it
  std::string_view last_op() const { return last_op_; }      // of the newest call

  // Each kind of group does the following in its own way.

  virtual std::unique_ptr<Exchange> post_exchange(const Call& call, ExchangeBlocks blocks) = 0;
  // Every rank asks for the same size.  Here it is memory that processes of a node map.
  virtual std::unique_ptr<Window> map_window(std::string_view op, int64_t bytes);
  // Collective over all ranks of this group, those without a sub-group included.
  virtual std::unique_ptr<PeerGroup> make_sub_group(const SubGroup& sub) = 0;
  // Moves every started exchange forward.  May fail the group.
  virtual void progress() = 0;
  // Adds to failures_ what has been told since the last call.
  virtual void hear_failures() {}
  // Takes no memory, as long as few failures have been told before.
  virtual void tell_failure(const Failure& failure) = 0;
  // True when the peer will make no further call.
  virtual bool has_left(int peer) const = 0;
  // nullopt when this kind of group cannot look at its peers.
  virtual std::optional<PeerSight> look_at(int /*peer*/) const { return {}; }
  // Shows the peers that this rank waits for `peer` in `op`; -1: for nobody any more.
  virtual void show_waiting(int /*peer*/, std::string_view /*op*/) {}

  // Moves every started exchange forward.
  void advance_started();
  // Waits until `call` is fewer than kMaxStarted epochs after the oldest exchange under way.
  void wait_for_oldest(const Call& call);

  std::vector<PeerExchange*> started_;  // not complete, by epoch
  std::vector<Failure> failures_;       // that ranks have told, this one included

 private:
  friend class PeerExchange;  // enters itself in started_

  // Tells what is untold, and hears what others have told.  True if the group cannot go on, unless
  // all of that is of ranks that are given up; then throw_heard() throws why.
  bool hears_of_failure();
  void throw_heard(const Call& call);
  void throw_if_failed(const Call& call);
  [[noreturn]] void fail_silence(const Call& call, int guilty, const Failure::Reason& reason);
  // Throws, unless the wait has ended after all.
  void fail_late(const Wait& wait);
  // What to add to a message about these ranks: who they are in the group that was split.
  std::string whose_numbers(std::initializer_list<int> ranks) const;
  CommError make_error(const Call& call, const Failure& failure) const;

  int num_neighbours_;  // ranks that share the num_cpus_ CPUs
  int num_cpus_;
  std::chrono::nanoseconds waited_{0};
  size_t num_seen_ = 0;  // how many of failures_ have been passed over
  std::vector<bool> dead_;
  std::string last_op_ = "start";
  std::optional<CommError> broken_;
  std::optional<Failure> cause_;   // of broken_, where a rank has told it
  std::optional<Failure> untold_;  // to be told by tell_untold()
};

// Collective.  Throws InvalidArgument on every rank unless all ask for a window of the same size.
void agree_on_window(Group& group, std::string_view op, int64_t bytes);

// Returns the timeout wanted, or that of the settings for 0.  Throws InvalidArgument when it is
// negative or too long.
std::chrono::milliseconds resolve_timeout(std::chrono::milliseconds wanted);

}  // namespace moebius::comm
