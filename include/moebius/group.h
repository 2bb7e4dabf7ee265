// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Group: one rank's handle on its peers.
//
// Calls marked "collective" are made by every rank, in the same order.  Each counts as one epoch;
// op name and epoch travel with it, so that a rank that skips, repeats or reorders a call is found
// out instead of being waited for.  Every wait has a deadline and ends at once when a peer aborts
// or leaves; the CommError then says operation, epoch, rank, peer, what was expected and what was
// seen.  After a CommError the group is broken: later calls throw the same error (but see
// set_dead).  docs/protocol.md has the protocol.
// Thread-safety: one thread at a time per Group object.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/dtype.h"
#include "moebius/error.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

class Profile;

// Which ranks share a node, i.e. can load and store each other's windows.  Ranks of a node are
// consecutive.
struct Topology {
  int rank = 0;
  int size = 1;
  std::vector<int> node_begin = {0, 1};  // [num_nodes + 1]; node n holds [begin[n], begin[n+1])

  int num_nodes() const { return static_cast<int>(node_begin.size()) - 1; }
  int node_of(int rank) const;
  int node() const { return node_of(rank); }
  int node_size(int node) const;
  int local_rank() const;  // index of `rank` within its node
  bool same_node(int peer) const { return node_of(peer) == node(); }

  // size ranks in nodes of ranks_per_node (the last may be smaller); 0 = all on one node.
  static Topology make(int rank, int size, int ranks_per_node);
};

// Bytes this rank has sent, own rank excluded, within its node and to others.
struct Traffic {
  int64_t intra_node_bytes = 0;
  int64_t inter_node_bytes = 0;
  std::vector<int64_t> to_rank;  // [size], both by receiver
};

// Symmetric memory: every rank has `bytes()` of its own, 256-byte aligned and zero at first.  In a
// group of GPUs it is memory of each rank's GPU, and the addresses are for kernels.  A rank's
// memory stays until the windows of all ranks are gone; they may go once the work that uses them is
// done.
class Window {
 public:
  virtual ~Window() = default;
  virtual int64_t bytes() const = 0;
  virtual std::byte* local() const = 0;
  // The peer's memory, nullptr when it is on another node.  peer(own rank) == local().
  virtual std::byte* peer(int rank) const = 0;
  // Stores a word at `offset` of the peer's memory, for its wait_until(): whoever sees it sees what
  // this rank has stored to that peer before.  REQUIRES: peer(rank) is memory of the host.
  virtual void signal(int rank, int64_t offset, int64_t value);
  // For kernels: peer(0), peer(1), ... as an array in the GPU's memory; nullptr on CPU.
  virtual std::byte* const* device_peers() const { return nullptr; }
};

// One message of an exchange.  A peer may be named several times; messages between two ranks match
// in the order given.  Zero bytes and the own rank are allowed.
struct SendBlock {
  int peer = 0;
  const void* data = nullptr;
  int64_t bytes = 0;
};
struct RecvBlock {
  int peer = 0;
  void* data = nullptr;
  int64_t bytes = 0;  // must equal what the peer sends, else CommError with both
};

// Shown the received blocks where they lie: blocks[i] holds the bytes of recvs[i].
using BlockReader = std::function<void(std::span<const std::byte* const> blocks)>;

// A started exchange.  Up to kMaxStarted may be under way at a time, waited for in any order; any
// call that waits moves all of them forward.
// Destroying one before wait() has returned, or test() has said true, abandons it and breaks the
// group.  REQUIRES: its group outlives it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual bool test() = 0;  // makes progress, never waits; true when done
  virtual void wait() = 0;  // until done; blocks up to the group's timeout
};

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual std::string_view name() const = 0;  // "threads", "processes", "mpi", "peer", "nccl"
  const Topology& topology() const { return topology_; }
  int rank() const { return topology_.rank; }
  int size() const { return topology_.size; }
  virtual int64_t epoch() const { return epoch_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  virtual Traffic traffic() const { return traffic_; }
  // How long this rank has waited for others, in any call, since the group was made.
  virtual std::chrono::nanoseconds waited() const { return {}; }
  // Where this rank's windows lie; host calls and their blocks are the host's in any group.
  virtual Device device() const { return Device::cpu(); }
  // For those who store through a window or let peers read with a BlockReader; other bytes are
  // counted by the exchange.
  virtual void count_traffic(int peer, int64_t bytes);
  // From now on the profile is told what is sent and waited for here, also by what unwinds after a
  // failure: it lives until another takes its place (null: none), or as long as the group.
  virtual void set_profile(Profile* profile) { profile_ = profile; }
  // True where an address of one rank is valid in all of them.  A block then costs little: rows may
  // be sent from where they lie, one block each, and a BlockReader reads the sender's own memory.
  virtual bool shares_address_space() const = 0;

  // Collective calls.

  virtual void barrier(std::string_view op) = 0;

  // The block lists are copied; sends may be read and receives written until done.
  // With a reader, received bytes are not copied out (recvs[i].data is ignored, may be null) but
  // shown to it, once, from within the test() or wait() that finds them complete: the sender's
  // memory where ranks share an address space, a staging buffer elsewhere.  Senders wait until it
  // has returned, so it must not block, nor call the group; if it throws, the group is broken.
  static constexpr int kMaxStarted = 8;
  virtual std::unique_ptr<Exchange> start_exchange(std::string_view op,
                                                   std::span<const SendBlock> sends,
                                                   std::span<const RecvBlock> recvs,
                                                   BlockReader reader = {}) = 0;
  void exchange(std::string_view op,
                std::span<const SendBlock> sends,
                std::span<const RecvBlock> recvs,
                BlockReader reader = {}) {
    start_exchange(op, sends, recvs, std::move(reader))->wait();
  }

  // The same for blocks in memory of device(), enqueued on `stream`, a stream of it: what is sent
  // is read and what is received written in its order.  On the host it is a call as the others,
  // which checks the blocks; returning says nothing of the GPU's work. Throws Unsupported in a
  // group without GPUs.
  virtual void exchange_on(const Stream& stream,
                           std::string_view op,
                           std::span<const SendBlock> sends,
                           std::span<const RecvBlock> recvs);
  // Whether the work of an exchange_on() has been given up, since it did not end in time: a stream
  // that went on then has not received all of its blocks.
  virtual bool has_given_up() const { return false; }

  // Every rank asks for the same size; InvalidArgument with both values on every rank otherwise.
  virtual std::unique_ptr<Window> make_window(std::string_view op, int64_t bytes) = 0;

  // One-sided calls.

  // Polls until ready(), for signals in windows.  `peer` is who should give the signal;
  // `describe` is called on expiry: "expected flag 7, seen 6".
  virtual void wait_until(std::string_view op,
                          int peer,
                          const std::function<bool()>& ready,
                          const std::function<std::string()>& describe) = 0;

  // Tells every peer that this rank cannot go on; their waits end with a CommError that names it.
  // Never throws.
  virtual void abort(std::string_view why) noexcept = 0;

  // Gives a rank up: what it does or fails to do no longer ends this rank's waits, and a CommError
  // it caused (peer() == rank), or told of, no longer breaks the group here.  While any rank is
  // given up, collective calls throw CommError; windows and wait_until() go on among the others.
  virtual void set_dead(int rank, bool dead) = 0;
  virtual bool is_dead(int rank) const = 0;

 protected:
  Group(Topology topology, std::chrono::milliseconds timeout)
      : topology_(std::move(topology)), timeout_(timeout) {
    traffic_.to_rank.resize(static_cast<size_t>(topology_.size));
  }

  Topology topology_;
  std::chrono::milliseconds timeout_;
  int64_t epoch_ = 0;
  Traffic traffic_;
  Profile* profile_ = nullptr;
};

// Collectives on tensors, the same for every group.  Rows are the first dimension; counts[r] is the
// number of rows rank r contributes or receives, and every rank passes the same counts.
// Tensors are on the CPU, and the work is done on return; or on the group's GPU, and it is enqueued
// on the stream.

// Every rank's `bytes` at out + rank * bytes.
void all_gather_bytes(Group& group, std::string_view op, const void* in, int64_t bytes, void* out);
// in [counts[rank], ...] -> out [sum(counts), ...], rank after rank.
void all_gatherv(Group& group,
                 std::string_view op,
                 const Tensor& in,
                 std::span<const int64_t> counts,
                 const Tensor& out,
                 const Stream& stream);
// in [sum(counts), ...] -> out [counts[rank], ...] = sum over ranks of their part for this rank,
// f32 accumulation in rank order, rounded once (f32, bf16, f16).
void reduce_scatterv(Group& group,
                     std::string_view op,
                     const Tensor& in,
                     std::span<const int64_t> counts,
                     const Tensor& out,
                     const Stream& stream);
// Rows [sum(send_counts), ...] grouped by destination -> rows grouped by source.
void all_to_allv(Group& group,
                 std::string_view op,
                 const Tensor& in,
                 std::span<const int64_t> send_counts,
                 std::span<const int64_t> recv_counts,
                 const Tensor& out,
                 const Stream& stream);
// Sum over ranks in rank order (i64).
void all_reduce_sum(Group& group, std::string_view op, std::span<int64_t> values);
int64_t all_reduce_max(Group& group, std::string_view op, int64_t value);

// threads: ranks are threads of this process.

// A link slowed down, for tests and demonstrations.  What a rank sends to another is to be seen
// there `latency` after the last of its bytes has left; bytes leave one after the other, but small
// messages (up to 4 KiB) do not queue behind large ones.
struct SlowLink {
  std::chrono::microseconds latency{0};
  int64_t bytes_per_second = 0;  // from one rank to one other; 0: as fast as memory is
};

struct ThreadGroupOptions {
  int num_ranks = 1;
  int ranks_per_node = 0;                // 0: one node
  std::chrono::milliseconds timeout{0};  // at most 24 h; 0: setting MOEBIUS_TIMEOUT_MS
  bool pin = true;  // disjoint CPUs per rank when there are at least as many CPUs as ranks
  // Not given: settings MOEBIUS_LINK_LATENCY_US and MOEBIUS_LINK_MB_PER_S, and so not slowed down.
  std::optional<SlowLink> link = std::nullopt;
  // Empty: ranks without GPU.  Else the GPU of each rank: those of a node must reach each other's
  // memory over NVLink or PCIe; several ranks may share one.  Where they do, every kernel that
  // waits for a peer must be loaded before it is launched (cuda::load_kernels), and have room
  // beside the others.  It is the current device of the rank's thread.
  std::vector<Device> devices = {};
  bool nccl = false;  // with a device per rank: make_nccl_group() instead of peer access
};
// Runs body on num_ranks threads and joins them.  A rank that throws aborts the group; the first
// original exception (not the CommErrors it caused elsewhere) is rethrown here.
// `errors` (optional): every rank's message, empty where it ended well.
void run_thread_ranks(const ThreadGroupOptions& options,
                      const std::function<void(Group&)>& body,
                      std::vector<std::string>* errors = nullptr);

// processes: ranks are processes of this machine, forked from this one.

struct ProcessGroupOptions {
  int num_ranks = 1;
  int ranks_per_node = 0;                // 0: one node
  std::chrono::milliseconds timeout{0};  // at most 24 h; 0: setting MOEBIUS_TIMEOUT_MS
  bool pin = true;                       // as with threads
  // Empty: ranks without GPU.  Else a GPU for each rank, in a nccl group over this one.
  std::vector<Device> devices = {};
};
// Runs body on num_ranks forked processes and waits for them.  REQUIRES: this process has no other
// threads and has called nothing of CUDA, since neither survives a fork; what ranks change is lost
// with them.  A rank that throws, dies or exits is told to the others at once; who does not end
// within twice the timeout and 10 s more is killed.  Throws Error with the message of the first
// that failed.
// `errors` (optional): every rank's message, empty where it ended well.
void run_process_ranks(const ProcessGroupOptions& options,
                       const std::function<void(Group&)>& body,
                       std::vector<std::string>* errors = nullptr);

// mpi: ranks are processes.

struct MpiGroupOptions {
  int ranks_per_node = 0;                // 0: as the machines are; > 0: pretended nodes
  std::chrono::milliseconds timeout{0};  // at most 24 h; 0: setting MOEBIUS_TIMEOUT_MS
};
// All processes of the job, renumbered so that those of a node are consecutive.  Initialises MPI
// when nobody has, and then finalizes it at destruction.  Collective, also the destruction: a rank
// that leaves tells its peers, then waits up to the timeout until they leave too.  After a failure
// it does not finalize, which could hang, so that the launcher ends the job: report the CommError
// while the group is alive.  An exception that unwinds through the group's scope aborts it.
// Throws Unsupported when built without MPI; CommError where ranks do not come in time.  It may
// then be called again.
std::unique_ptr<Group> make_mpi_group(const MpiGroupOptions& options = {});
bool mpi_available();
// True when this process was started by an MPI launcher (or MPI is initialised already).
bool launched_by_mpi();

// nccl: each rank of a host group (threads, processes, mpi) with a GPU of its own.  Host calls
// remain the host group's; windows are symmetric memory of NCCL, reached over NVLink within the
// host group's nodes, pretended or real.  NVLink multicast is not used.  Collective; throws
// Unsupported, with the reason, when built without NCCL, when the library found is not of the
// version this was built with, and when GPUs of a node cannot load and store each other's memory;
// the host group is then still the caller's.
std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Group>&& host, Device device);
// Empty where a nccl group can be made, else the reason: built without NCCL, no library, a wrong
// one.
std::string why_no_nccl();

}  // namespace moebius
