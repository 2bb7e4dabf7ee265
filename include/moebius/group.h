// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Group: one rank's handle on its peers.
//
// Every rank makes the calls marked "collective", in the same order.  Each counts as one epoch.
// The operation's name and the epoch travel with it, so that a rank that skips, repeats or reorders
// a call is found out instead of being waited for.  Every wait has a deadline, and ends at once
// when a peer aborts or leaves.  The CommError then names the operation, the epoch, the rank, the
// peer, what was expected and what was seen.  After a CommError the group is broken: later calls
// throw the same error (but see set_dead).  docs/protocol.md has the protocol.
// Arguments that cannot be right (a rank out of range, a negative size) throw InvalidArgument.
// Operation names (`op`) must outlive the call, or the exchange that it starts.
// Thread-safety: one thread at a time per Group object, with its exchanges.
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

#include "moebius/api.h"
#include "moebius/dtype.h"
#include "moebius/error.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

class Profile;

// Which ranks share a node, and so can load and store each other's windows.  The ranks of a node
// are consecutive.
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

  // `size` ranks in nodes of ranks_per_node, of which the last may be smaller; 0: all on one node.
  static Topology make(int rank, int size, int ranks_per_node);
};

// The bytes that this rank has sent to other ranks, within its node and to other nodes.
struct Traffic {
  int64_t intra_node_bytes = 0;
  int64_t inter_node_bytes = 0;
  std::vector<int64_t> to_rank;  // [size] the sum of both, by receiver
};

// Symmetric memory: every rank has `bytes()` of its own, 256-byte aligned and zero at first.  In a
// group of GPUs it is memory of each rank's GPU, and the addresses are for kernels.  A rank's
// memory stays until the windows of all ranks are destroyed.  A window may be destroyed once the
// work that uses it is done.
class Window {
 public:
  virtual ~Window() = default;
  virtual int64_t bytes() const = 0;
  virtual std::byte* local() const = 0;
  // The memory of a rank; nullptr when it is on another node.  peer(own rank) == local().
  virtual std::byte* peer(int rank) const = 0;
  // Stores a word at byte `offset` of the peer's memory, with release order: a peer that sees it,
  // as in wait_until(), also sees what this rank has stored to it before.
  // REQUIRES: peer(rank) is memory of the host; `offset` is a multiple of 8; this rank's group
  // lives.
  virtual void signal(int rank, int64_t offset, int64_t value);
  // The array peer(0), peer(1), ... in the GPU's memory, for kernels; nullptr on the CPU.
  virtual std::byte* const* device_peers() const { return nullptr; }
};

// One message of an exchange.  A peer may be named several times; the messages between two ranks
// are matched in the order given.  Zero bytes and the own rank are allowed.
struct SendBlock {
  int peer = 0;
  const void* data = nullptr;
  int64_t bytes = 0;
};
struct RecvBlock {
  int peer = 0;
  void* data = nullptr;
  int64_t bytes = 0;  // must equal what the peer sends; a CommError names both otherwise
};

// A function that is shown the received blocks where they lie: blocks[i] holds the bytes of
// recvs[i].
using BlockReader = std::function<void(std::span<const std::byte* const> blocks)>;

// A started exchange.  Up to kMaxStarted may be under way at a time, and they may be waited for in
// any order; every call that waits moves all of them forward.
// When one is destroyed before wait() has returned, or test() has returned true, it is abandoned
// and the group is broken.  REQUIRES: its group outlives it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual bool test() = 0;  // makes progress but never waits; true when the exchange is done
  virtual void wait() = 0;  // returns when the exchange is done; blocks up to the group's timeout
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
  // How long this rank has waited for others in all calls since the group was made.
  virtual std::chrono::nanoseconds waited() const { return {}; }
  // The device of this rank's windows.  In any group the blocks of host calls lie in host memory.
  virtual Device device() const { return Device::cpu(); }
  // Counts bytes sent.  Callers that store through a window, or let peers read with a BlockReader,
  // use it; an exchange counts its bytes itself.
  virtual void count_traffic(int peer, int64_t bytes);
  // From now on the profile is told what this rank sends and how long it waits, also while a
  // failure unwinds.  It must live until another takes its place (null: none), or as long as the
  // group.
  virtual void set_profile(Profile* profile) { profile_ = profile; }
  // True where an address of one rank is valid in all ranks.  A block then costs little: rows may
  // be sent from where they lie, one block each, and a BlockReader reads the sender's own memory.
  virtual bool shares_address_space() const = 0;

  // The following calls are collective.

  virtual void barrier(std::string_view op) = 0;

  // Says that this rank has done its part, and returns when every rank has said so.  What must not
  // be done by half, such as writing the results of the job, is done after it.  It is the
  // group's last call: a later one throws or is missed by the peers.
  virtual void leave() { barrier("leave"); }

  // Starts to send and receive blocks.  The lists are copied.  Until the exchange is done, the
  // memory sent may be read and the memory received may be written at any time.
  // With a reader the received bytes are not copied out, and recvs[i].data is ignored and may be
  // null.  They are shown to the reader, once, within the test() or wait() that finds them
  // complete: in the sender's memory where ranks share an address space, in a staging buffer
  // elsewhere.  Senders wait until the reader has returned, so it must neither block nor call the
  // group.  If it throws, the group is broken.
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

  // An exchange of blocks in memory of device(), enqueued on `stream`, which is a stream of that
  // device: blocks are read and written in the stream's order.  On the host it is a collective call
  // like the others, which checks the blocks, but it does not wait for the GPU's work.  Throws
  // Unsupported in a group without GPUs.
  virtual void exchange_on(const Stream& stream,
                           std::string_view op,
                           std::span<const SendBlock> sends,
                           std::span<const RecvBlock> recvs);
  // True when the work of an exchange_on() was given up because it did not end in time.  The stream
  // has then gone on without having received all of its blocks.
  virtual bool has_given_up() const { return false; }

  // Makes a window.  Every rank asks for the same size; otherwise every rank throws InvalidArgument
  // with both sizes.  Throws OutOfMemory where there is not so much memory.
  virtual std::unique_ptr<Window> make_window(std::string_view op, int64_t bytes) = 0;

  // Makes sub-groups: each of the ranks that give the same `color`, ordered by `key` and then by
  // rank.  A negative color makes none, and the result is nullptr.  Ranks of a node stay ranks of a
  // node, so keys must leave them neighbours; otherwise every rank throws InvalidArgument.
  // - A sub-group is a group of its own, with its own epochs, windows, exchanges, traffic and dead
  //   ranks.  It has the timeout of this group and may outlive it.  Destroying it tells its members
  //   only.  It can be split again.
  // - Its ranks are numbered anew, also in errors: a CommError's rank() and peer() are numbers of
  //   the sub-group, and its message ends with what they are in the group that was split first.
  // - A failure stays in the group whose call has failed.  It breaks neither the sub-groups, which
  //   may have other members, nor this group.  A rank that cannot go on tells each of its groups:
  //   abort() where peers should know why, or destruction, which says that the rank has left.
  // Throws Unsupported in groups of GPUs: split the host group, then give GPUs to the parts.
  virtual std::unique_ptr<Group> split(int color, int key = 0);

  // The rank `rank` of this group as the group knows it that was split first; `rank` itself in a
  // group that does not come from a split.
  int original_rank(int rank) const;

  // The following calls are one-sided.

  // Polls until ready() is true, for signals in windows.  `peer` is the rank that should give the
  // signal.  describe() is called when the deadline expires: "expected flag 7, seen 6".
  virtual void wait_until(std::string_view op,
                          int peer,
                          const std::function<bool()>& ready,
                          const std::function<std::string()>& describe) = 0;

  // Tells every peer that this rank cannot go on.  Their waits end with a CommError that names this
  // rank.
  virtual void abort(std::string_view why) noexcept = 0;

  // True when another rank has failed because this one did not come in time.  It looks for such
  // news, but never waits.
  virtual bool is_missed() noexcept { return false; }

  // Excludes a rank, or includes it again.  What an excluded rank does or fails to do no longer
  // ends this rank's waits, and a CommError that it caused (peer() == rank) or told of no longer
  // breaks the group here.  While any rank is excluded, collective calls throw CommError; windows
  // and wait_until() go on among the others.
  virtual void set_dead(int rank, bool dead) = 0;
  virtual bool is_dead(int rank) const = 0;

 protected:
  Group(Topology topology, std::chrono::milliseconds timeout)
      : topology_(std::move(topology)), timeout_(timeout) {
    traffic_.to_rank.resize(static_cast<size_t>(topology_.size));
  }

  Topology topology_;
  std::chrono::milliseconds timeout_;
  std::vector<int> original_ranks_;  // [size] of a sub-group; otherwise empty
  int64_t epoch_ = 0;
  Traffic traffic_;
  Profile* profile_ = nullptr;
};

// Collectives on tensors, the same for every group.  Rows are the first dimension.  counts[r] is
// the number of rows that rank r contributes or receives; every rank passes the same counts.
// Tensors are on the CPU, and the work is done on return; or they are on the group's GPU, and the
// work is enqueued on the stream, which is one of that GPU.
// They throw InvalidArgument, before anything is sent, for wrong shapes, dtypes or devices.

// Gathers `bytes` of every rank; those of rank r are at `out` + r * bytes.
void all_gather_bytes(Group& group, std::string_view op, const void* in, int64_t bytes, void* out);
// in [counts[rank], ...] -> out [sum(counts), ...], the rows of all ranks in order of rank.
void all_gatherv(Group& group,
                 std::string_view op,
                 const Tensor& in,
                 std::span<const int64_t> counts,
                 const Tensor& out,
                 const Stream& stream);
// in [sum(counts), ...] -> out [counts[rank], ...]: the sum over ranks of their rows for this rank.
// It is accumulated in f32 in order of rank and rounded once.  For f32, bf16 and f16.
void reduce_scatterv(Group& group,
                     std::string_view op,
                     const Tensor& in,
                     std::span<const int64_t> counts,
                     const Tensor& out,
                     const Stream& stream);
// in [sum(send_counts), ...] grouped by destination -> out [sum(recv_counts), ...] grouped by
// source.
void all_to_allv(Group& group,
                 std::string_view op,
                 const Tensor& in,
                 std::span<const int64_t> send_counts,
                 std::span<const int64_t> recv_counts,
                 const Tensor& out,
                 const Stream& stream);
// Replaces each value by its sum over the ranks.
void all_reduce_sum(Group& group, std::string_view op, std::span<int64_t> values);
int64_t all_reduce_max(Group& group, std::string_view op, int64_t value);

// threads: ranks are threads of this process.

// A slowed-down link, for tests and demonstrations.  What a rank sends to another can be seen there
// `latency` after the last byte has left.  Bytes leave one after the other, but small messages (up
// to 4 KiB) do not queue behind large ones.
struct SlowLink {
  std::chrono::microseconds latency{0};
  int64_t bytes_per_second = 0;  // from one rank to one other; 0: as fast as memory
};

struct ThreadGroupOptions {
  int num_ranks = 1;
  int ranks_per_node = 0;                // 0: one node
  std::chrono::milliseconds timeout{0};  // at most 24 h; 0: setting MOEBIUS_TIMEOUT_MS
  bool pin = true;  // pins ranks to disjoint CPUs when there are at least as many CPUs as ranks
  // Without a value the settings MOEBIUS_LINK_LATENCY_US and MOEBIUS_LINK_MB_PER_S hold; they slow
  // nothing down unless they are set.
  std::optional<SlowLink> link = std::nullopt;
  // The GPU of each rank; empty: ranks have no GPU.  The GPUs of a node must reach each other's
  // memory over NVLink or PCIe.  Several ranks may share a GPU; then every kernel that waits for a
  // peer must be loaded before it is launched (cuda::load_kernels), and have room beside the
  // others.  The GPU is made the current device of the rank's thread.
  std::vector<Device> devices = {};
  bool nccl = false;  // with a device per rank: make_nccl_group() instead of peer access
};
// Runs the body on num_ranks threads and joins them.  A rank that throws aborts the group.  The
// first original exception (not the CommErrors that it caused on other ranks) is rethrown here.
// `errors` (optional) receives every rank's message, empty where the rank ended well.
void run_thread_ranks(const ThreadGroupOptions& options,
                      const std::function<void(Group&)>& body,
                      std::vector<std::string>* errors = nullptr);

// Makes the groups of num_ranks threads that the caller has: groups[r] is for the thread that is to
// be rank r, which may have any age and end when it likes.  `options.num_ranks` and `pin` have no
// meaning here; devices and nccl are refused (make_nccl_group() gives a group a GPU).
// - A rank that never makes a call is named by the others when their deadline expires.
// - Destroying a group tells the others that this rank has left; they end at once if they still
//   need it.  A thread that ends without destroying its group is like one that never calls.  Before
//   a thread gives up because of an error it should call Group::abort() with the reason.
// - Groups may be destroyed in any order and on any thread, also those that were never used.
//   Their windows and exchanges are bound as everywhere.
// - Nobody is pinned, unless a thread asks for it: pin_rank_thread().
std::vector<std::unique_ptr<Group>> make_thread_groups(int num_ranks,
                                                       const ThreadGroupOptions& options = {});
// Splits the CPUs that the calling thread may run on into num_ranks parts, ordered by NUMA node and
// core, and keeps the thread on the part of `rank`, with all threads that it starts from then on.
// Streams of the CPU that it makes later have as many threads.  Returns false, and changes nothing,
// where there are fewer CPUs than ranks or just one rank.
bool pin_rank_thread(int rank, int num_ranks);

// processes: ranks are processes of this machine, forked from this one.

struct ProcessGroupOptions {
  int num_ranks = 1;
  int ranks_per_node = 0;                // 0: one node
  std::chrono::milliseconds timeout{0};  // at most 24 h; 0: setting MOEBIUS_TIMEOUT_MS
  bool pin = true;                       // as with threads
  std::vector<Device> devices = {};      // as with threads; make_cuda_group() says how they reach
  bool nccl = false;                     // with a device per rank: make_nccl_group() instead
};
// Runs the body on num_ranks forked processes and waits for them.  What the ranks change in memory
// is lost with them.  When a rank throws, dies or exits, the others are told at once.  A process
// that is still running after twice the timeout and 10 s more is killed, and one that is stopped as
// soon as the others have ended.  Throws Error with the message of the first rank that failed.
// REQUIRES: this process has no other threads and has called nothing of CUDA, since neither
// survives a fork.
// `errors` (optional) receives every rank's message, empty where the rank ended well.
void run_process_ranks(const ProcessGroupOptions& options,
                       const std::function<void(Group&)>& body,
                       std::vector<std::string>* errors = nullptr);

// Any way in which the caller's processes can exchange a few bytes: a pipe, a socket, a store.
struct Bootstrap {
  int rank = 0;
  int size = 1;  // at most 256
  // Gathers `bytes` bytes of every rank; those of rank r are at `out` + r * bytes.  It is called
  // once, within make_process_group(), by every rank and with the same `bytes` (some hundred).  Its
  // wait for other ranks is its own, and so is the deadline of that; what it throws is passed on.
  std::function<void(const void* in, int64_t bytes, void* out)> all_gather = {};
  std::chrono::milliseconds timeout{0};  // at most 24 h; 0: setting MOEBIUS_TIMEOUT_MS
  int ranks_per_node = 0;                // 0: one node; > 0: pretended nodes
};
// Makes a group of processes of this machine that the caller has started in whatever way.  They
// need one network namespace, in which they hand memory to each other, and nothing else in common.
// Nobody is pinned, forked or waited for at the end.  What they share has no name and is gone with
// the last of them, also when they are killed.
// - A process that ends without destroying its group is named at once by the others that may watch
//   it (processes of one process namespace, Linux 5.3), else at the deadline.  So is one that is
//   stopped.
// Collective.  Throws InvalidArgument on every rank when ranks or sizes do not fit together,
// Unsupported on every rank when the processes cannot share memory, and CommError when a rank that
// has been gathered does not come in time.
std::unique_ptr<Group> make_process_group(const Bootstrap& bootstrap);

// mpi: ranks are processes of an MPI job.

struct MpiGroupOptions {
  int ranks_per_node = 0;                // 0: as the machines are; > 0: pretended nodes
  std::chrono::milliseconds timeout{0};  // at most 24 h; 0: setting MOEBIUS_TIMEOUT_MS
  // Points to the MPI_Comm whose processes become ranks; null: MPI_COMM_WORLD.  It is an
  // intracommunicator of the MPI that this library was built with.  It stays the caller's: what is
  // sent never meets the caller's messages, and it may be freed once there is a group.  It is a
  // void* so that this header needs no mpi.h.
  const void* comm = nullptr;
};
// Makes a group of all processes of the communicator, renumbered so that those of a node are
// consecutive.  Groups of different communicators live side by side.
// Without a communicator it initialises MPI unless that has been done.  MPI is then finalized when
// the last group of the process is destroyed, for which all processes of the job must come within
// the timeout.
// Collective, and so is the destruction: a rank that leaves tells its peers, then waits up to the
// timeout until they leave too.  After a failure it does not finalize MPI, which could hang, and
// the launcher ends the job; so report the CommError while the group is alive.  An exception that
// unwinds through the group's scope aborts it.
// Throws Unsupported when built without MPI, and CommError when ranks do not come in time.  It may
// then be called again with the same communicator.
// Thread-safety: of all mpi groups of a process one thread at a time makes, uses or destroys one.
std::unique_ptr<Group> make_mpi_group(const MpiGroupOptions& options = {});
bool mpi_available();
// True when an MPI launcher has started this process, or MPI has been initialised already.
bool launched_by_mpi();

// peer: each rank of a host group (threads, processes or mpi of one machine) gets a GPU; several
// ranks may share one.  The host group still makes all host calls.  Windows are memory of the GPUs,
// which ranks of the host group's nodes reach over NVLink or PCIe: rank threads at its own address,
// processes through CUDA's interprocess handles.  Kernels of processes that share a GPU take turns
// (unless an MPS server runs), so what waits for another process costs time slices there.
// exchange_on() among processes makes the host wait for this rank's own work on the stream.
// Collective.  Throws Unsupported, with the reason, on every rank when one of them cannot reach
// another's memory.  After an error the host group is still the caller's.
std::unique_ptr<Group> make_cuda_group(std::unique_ptr<Group>&& host, Device device);

// nccl: each rank of a host group (threads, processes, mpi) has a GPU of its own.  The host group
// still makes all host calls.  Windows are symmetric memory of NCCL, which ranks reach over NVLink
// within the host group's nodes, pretended or real.  NVLink multicast is not used.
// `comm` is an ncclComm_t that the group uses, of the same ranks in the same order; null: the group
// makes its own.  It stays the caller's, who destroys it after the group and makes no call of it
// while one of the group is under way.  When a call of it fails or is late, the group aborts it
// (ncclCommAbort), and the caller must not use it any more.
// Collective.  Throws Unsupported, with the reason, when built without NCCL, when the library is
// older than 2.28.7 or lays out windows in another way than the headers of this build, and when
// GPUs of a node cannot load and store each other's memory; InvalidArgument for a communicator of
// other ranks.  After an error the host group is still the caller's.
std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Group>&& host,
                                       Device device,
                                       void* comm = nullptr);
// The same for a caller who has nothing but the communicator: its ranks, which are processes of one
// machine, meet through it and become a host group of processes.  timeout: at most 24 h; 0: setting
// MOEBIUS_TIMEOUT_MS.
std::unique_ptr<Group> make_nccl_group(void* comm, std::chrono::milliseconds timeout);
// The reason why no nccl group can be made (built without NCCL, no library, a wrong one); empty
// when one can be.
std::string why_no_nccl();

}  // namespace moebius
