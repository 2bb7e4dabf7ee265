// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MpiGroup: ranks are processes of an MPI job.  Only MPI calls that return at once are used (Isend,
// Irecv, Testsome, Iprobe), so that the deadlines are kept here.
#pragma once

#include <mpi.h>

#include <deque>
#include <memory>
#include <vector>

#include "comm/group/peer_group.h"

namespace moebius::comm {

// What a rank tells all others beside the collective calls: that it has left, or a failure.
struct Notice {
  enum Kind : int32_t { kFailure, kLeft };
  int32_t kind = kLeft;
  FailureRecord failure;
};

class MpiGroup final : public PeerGroup {
 public:
  // Takes ownership of the communicator.  With owns_mpi the destructor also finalizes MPI.
  MpiGroup(MPI_Comm comm,
           bool owns_mpi,
           Topology topology,
           std::chrono::milliseconds timeout,
           int num_neighbours,
           int num_cpus);
  ~MpiGroup() override;

  std::string_view name() const override { return "mpi"; }

 protected:
  std::unique_ptr<Exchange> post_exchange(const Call& call, ExchangeBlocks blocks) override;
  void progress() override;
  void tell_failure(const Failure& failure) override;
  bool has_left(int peer) const override { return has_left_[static_cast<size_t>(peer)]; }

 private:
  friend class MpiExchange;

  // A send whose buffer outlives the exchange or call that made it.
  struct KeptSend {
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<std::byte> buffer;
  };

  void send_notice(const Notice& notice);
  void receive_notices();
  void drop_finished_sends();
  bool wait_for_peers_to_leave();

  MPI_Comm comm_;
  const bool owns_mpi_;
  const int exceptions_at_start_;
  std::vector<bool> has_left_;
  std::deque<KeptSend> kept_sends_;
  // True when a message is under way whose memory may be gone: MPI must not be called again.
  bool is_poisoned_ = false;
};

}  // namespace moebius::comm
