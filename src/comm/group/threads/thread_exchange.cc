// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/threads/thread_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/group/shown_blocks.h"
#include "core/backoff.h"
#include "core/parallel.h"

namespace moebius::comm {

namespace {

// For fewer bytes a second thread costs more than it saves.
constexpr int64_t kParallelBytes = int64_t{4} << 20;
constexpr int64_t kPieceBytes = int64_t{1} << 20;

void copy_blocks(const Stream& stream,
                 std::span<const SendBlock> from,
                 std::span<const RecvBlock> to,
                 int64_t bytes) {
  if (bytes < kParallelBytes || stream.num_threads() == 1) {
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i].bytes > 0) {
        std::memcpy(to[i].data, from[i].data, static_cast<size_t>(to[i].bytes));
      }
    }
    return;
  }
  struct Piece {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < to.size(); ++i) {
    for (int64_t begin = 0; begin < to[i].bytes; begin += kPieceBytes) {
      pieces.push_back({static_cast<std::byte*>(to[i].data) + begin,
                        static_cast<const std::byte*>(from[i].data) + begin,
                        std::min(kPieceBytes, to[i].bytes - begin)});
    }
  }
  const auto num_pieces = static_cast<int64_t>(pieces.size());
  const int64_t grain = std::max<int64_t>(1, num_pieces / (8 * stream.num_threads()));
  parallel_for(stream, num_pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
    }
  });
}

bool is_in(const std::vector<int>& peers, int peer) {
  return std::find(peers.begin(), peers.end(), peer) != peers.end();
}

// A claim on a peer's blocks while they are read.  It is false when the peer has withdrawn them.
class Claim {
 public:
  explicit Claim(PhaseCell& cell) {
    Phase posted = Phase::kPosted;
    // The side that loses this race must not touch the memory.  The blocks became visible with the
    // stamp, so relaxed order would do for them; acquire keeps the reads behind the claim.
    if (cell.phase.compare_exchange_strong(posted, Phase::kReading, std::memory_order_acquire,
                                           std::memory_order_relaxed)) {
      cell_ = &cell;
    }
  }
  Claim(Claim&& other) noexcept : cell_(std::exchange(other.cell_, nullptr)) {}
  // Why a destructor: the sender waits for this without a deadline, also when an exception ends the
  // reads.
  ~Claim() {
    if (cell_ != nullptr) {
      // pairs with advance (of unacked_) and withdraw at the sender: the reads are over.
      cell_->phase.store(Phase::kRead, std::memory_order_release);
    }
  }
  explicit operator bool() const { return cell_ != nullptr; }

 private:
  PhaseCell* cell_ = nullptr;
};

}  // namespace

ThreadExchange::ThreadExchange(ThreadGroup& group, const Call& call, ExchangeBlocks blocks)
    : PeerExchange(group, call, std::move(blocks.reader)),
      threads_(group),
      slot_(group.shared_->slot(group.rank(), call.epoch)),
      is_shown_(!reader_) {
  const int num_ranks = group.size();
  recvs_.assign(blocks.recvs, num_ranks);
  slot_.sends.assign(blocks.sends, num_ranks);
  for (int i = 0; i < num_ranks; ++i) {
    // Each rank starts with itself and goes on with the next, so that not all read rank 0 first.
    const int peer = (group.rank() + i) % num_ranks;
    absent_.push_back(peer);
    slot_.phases[static_cast<size_t>(peer)].due = group.due(peer);
    if (slot_.sends.bytes_of(peer) > 0) {
      unacked_.push_back(peer);
      slot_.phases[static_cast<size_t>(peer)].phase.store(Phase::kPosted,
                                                          std::memory_order_relaxed);
    }
  }
  const uint64_t stamp = Stamp::make(call.epoch, group.op_id(call.op)).word;
  start();
  // pairs with take_from: the blocks, their phases and the bytes to be sent.
  slot_.stamp.store(stamp, std::memory_order_release);
  group.own().latest.store(stamp, std::memory_order_relaxed);
}

ThreadExchange::~ThreadExchange() {
  if (!is_done_) {
    withdraw();
    abandon();
  }
}

void ThreadExchange::withdraw() noexcept {
  for (const int peer : unacked_) {
    auto& phase = slot_.phases[static_cast<size_t>(peer)].phase;
    Phase seen = Phase::kPosted;
    phase.compare_exchange_strong(seen, Phase::kWithdrawn, std::memory_order_acq_rel);
    // While the peer is in a copy or a reader, neither of which blocks, this rank waits.
    // pairs with ~Claim: the peer's reads are over, the memory may go.
    while (phase.load(std::memory_order_acquire) == Phase::kReading) {
      std::this_thread::yield();
    }
  }
}

void ThreadExchange::check_blocks(int peer) {
  const auto sent = threads_.shared_->slot(peer, call_.epoch).sends.of(group_.rank());
  const auto expected = recvs_.of(peer);
  if (sent.size() != expected.size()) {
    group_.fail(call_, peer,
                Failure::Reason::format("rank {} sends {} blocks to rank {}, which expects {}",
                                        peer, sent.size(), group_.rank(), expected.size()));
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].bytes != expected[i].bytes) {
      group_.fail(
          call_, peer,
          Failure::Reason::format("rank {} sends {} bytes in block {} to rank {}, which expects {}",
                                  peer, sent[i].bytes, i, group_.rank(), expected[i].bytes));
    }
  }
}

// True once nothing more is needed from the peer; with a reader, once its blocks may be shown.
bool ThreadExchange::take_from(int peer) {
  Slot& from = threads_.shared_->slot(peer, call_.epoch);
  // pairs with the constructor: what the peer published with its stamp.
  const Stamp stamp{from.stamp.load(std::memory_order_acquire)};
  if (stamp.epoch() < call_.epoch) {
    return false;
  }
  if (stamp.op_id() != Stamp{slot_.stamp.load(std::memory_order_relaxed)}.op_id()) {
    group_.fail(
        call_, make_mismatch(group_.rank(), call_, peer, threads_.shared_->op_name(stamp.op_id())));
  }
  check_blocks(peer);
  PhaseCell& cell = from.phases[static_cast<size_t>(group_.rank())];
  if (!is_due(cell.due)) {
    return false;
  }
  const int64_t bytes = recvs_.bytes_of(peer);
  if (reader_ || bytes == 0) {
    return true;
  }
  const Claim claim(cell);
  if (!claim) {
    return false;
  }
  copy_blocks(threads_.copy_stream(), from.sends.of(group_.rank()), recvs_.of(peer), bytes);
  return true;
}

// Claims the blocks of all peers, shows them, and releases them.  Shows nothing when a peer has
// withdrawn its blocks.
void ThreadExchange::show_all() {
  std::vector<Claim> claims;
  claims.reserve(static_cast<size_t>(group_.size()));
  std::vector<const std::byte*> shown(recvs_.size(), nullptr);
  for (int peer = 0; peer < group_.size(); ++peer) {
    Slot& from = threads_.shared_->slot(peer, call_.epoch);
    if (recvs_.bytes_of(peer) > 0) {
      claims.emplace_back(from.phases[static_cast<size_t>(group_.rank())]);
      if (!claims.back()) {
        return;
      }
    }
    const auto blocks = from.sends.of(group_.rank());
    const auto index = recvs_.index_of(peer);
    for (size_t i = 0; i < blocks.size(); ++i) {
      shown[index[i]] = static_cast<const std::byte*>(blocks[i].data);
    }
  }
  show_blocks(group_, reader_, shown);
  is_shown_ = true;
}

bool ThreadExchange::advance() {
  std::erase_if(absent_, [&](int peer) { return take_from(peer); });
  if (absent_.empty() && !is_shown_ && reader_) {  // without reader_ it has thrown before
    show_all();
  }
  std::erase_if(unacked_, [&](int peer) {
    // pairs with ~Claim at the peer: its reads are over, the memory may be reused.
    return slot_.phases[static_cast<size_t>(peer)].phase.load(std::memory_order_acquire) ==
           Phase::kRead;
  });
  is_done_ = absent_.empty() && is_shown_ && unacked_.empty();
  return is_done_;
}

bool ThreadExchange::has_arrived(int peer) const {
  return !is_in(absent_, peer);
}

bool ThreadExchange::is_missing(int peer) const {
  // Why the absent first: a peer that has come but has not read may itself wait for them.
  return is_in(absent_.empty() ? unacked_ : absent_, peer);
}

std::string ThreadExchange::describe_rest(int peer) const {
  return fmt::format("expected to read {} bytes from rank {}", slot_.sends.bytes_of(peer),
                     group_.rank());
}

}  // namespace moebius::comm
