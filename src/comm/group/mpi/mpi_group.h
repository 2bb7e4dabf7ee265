// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MpiGroup: ranks are processes of an MPI job.  Only MPI calls that return at once are used (Isend,
// Irecv, Testsome, Iprobe), so that the deadlines are kept here.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group/mpi/job.h"
#include "comm/group/mpi/library.h"
#include "comm/group/mpi/mpi_api.h"
#include "comm/group/peer_group.h"
#include "moebius/deadline.h"

namespace moebius::comm {

// What a rank says of itself when it has waited for long, and once more when that is over.
struct Waiting {
  int64_t epoch = 0;
  OpName op;               // of the call at `epoch`
  int32_t waits_for = -1;  // -1: it waits no more
  OpName waits_in;
};

// What a rank tells all others beside the collective calls.
struct Notice {
  enum Kind : int32_t { kFailure, kLeft, kWaiting };
  int32_t kind = kLeft;
  Failure failure;  // of kFailure
  Waiting waiting;  // of kWaiting
};

class MpiGroup final : public PeerGroup {
 public:
  // Takes ownership of the communicator.  `library` is MPI where this library has initialised it,
  // else null; `place` is where the processes of the job met.
  MpiGroup(MpiComm comm,
           std::shared_ptr<MpiLibrary> library,
           MeetingPlace place,
           Topology topology,
           std::chrono::milliseconds timeout,
           int num_neighbours,
           int num_cpus);
  ~MpiGroup() override;

  std::string_view name() const override { return "mpi"; }
  void leave() override;

 protected:
  std::unique_ptr<Exchange> post_exchange(const Call& call, ExchangeBlocks blocks) override;
  std::unique_ptr<PeerGroup> make_sub_group(const SubGroup& sub) override;
  void progress() override;
  void hear_failures() override;
  void tell_failure(const Failure& failure) override;
  bool has_left(int peer) const override { return has_left_[static_cast<size_t>(peer)]; }
  std::optional<PeerSight> look_at(int peer) const override;
  void show_waiting(int peer, std::string_view op) override;

 private:
  friend class MpiExchange;

  // A send whose buffer outlives the exchange or call that made it.
  struct KeptSend {
    MpiRequest request;
    std::unique_ptr<std::byte[]> buffer;
  };

  // A notice that is on its way to the peers.
  struct SentNotice {
    Notice notice;
    std::vector<MpiRequest> requests;
    bool is_under_way = false;
  };

  void send_notice(const Notice& notice);
  void tell_left();
  void receive_notices();
  void tell_waiting();
  void drop_finished_sends();
  bool wait_for_peers_to_leave();
  // Poisons MPI, once the peers have been told that this rank has left, and why.
  void end_with_mpi() noexcept;

  MpiComm comm_;
  const std::shared_ptr<MpiLibrary> library_;
  const MeetingPlace place_;
  const int exceptions_at_start_;
  std::vector<bool> has_left_;
  std::deque<KeptSend> kept_sends_;
  // Some are there from the start, so that a failure can be told when memory has run out.
  std::deque<SentNotice> sent_notices_;
  Waiting own_;  // what this rank waits for
  Deadline::Clock::time_point waits_since_;
  int told_waits_for_ = -1;    // what the peers know of it
  std::vector<Waiting> told_;  // [num_ranks] what peers have told
  bool is_over_ = false;       // leave() has returned
  bool has_heard_of_poison_ = false;
};

}  // namespace moebius::comm
