// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/mpi/mpi_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "comm/group/mpi/mpi_check.h"
#include "moebius/deadline.h"

namespace moebius::comm {

MpiExchange::MpiExchange(MpiGroup& group,
                         const Call& call,
                         std::span<const SendBlock> sends,
                         std::span<const RecvBlock> recvs,
                         BlockReader reader)
    : group_(group),
      call_(call),
      data_tag_(kDataTag + static_cast<int>(call.epoch % Group::kMaxStarted)),
      recv_list_(recvs.begin(), recvs.end()),
      reader_(std::move(reader)),
      shown_(reader_ != nullptr),
      peers_(static_cast<size_t>(group.size())) {
  if (reader_) {
    shown_.place(recv_list_);
  }
  sends_.assign(sends, group.size());
  recvs_.assign(recv_list_, group.size());
  for (int peer = 0; peer < group.size(); ++peer) {
    Peer& state = peers_[static_cast<size_t>(peer)];
    for (const SendBlock& block : sends_.of(peer)) {
      // MPI takes what it only reads without const, too.
      state.out.append(static_cast<std::byte*>(const_cast<void*>(block.data)), block.bytes);
    }
    for (const RecvBlock& block : recvs_.of(peer)) {
      state.in.append(static_cast<std::byte*>(block.data), block.bytes);
    }
    state.sent = describe_blocks(call_, sends_.of(peer));
    state.expected = describe_blocks(call_, recvs_.of(peer));
  }
  group_.started_.push_back(this);
  try {
    for (int i = 1; i < group.size(); ++i) {
      send_to((group.rank() + i) % group.size());
    }
    copy_own();
  } catch (...) {
    std::erase(group_.started_, this);
    cancel();
    throw;
  }
}

MpiExchange::~MpiExchange() {
  if (!is_done_) {
    std::erase(group_.started_, this);
    cancel();
    group_.abandon(call_);
  }
}

void MpiExchange::copy_own() {
  const auto sent = sends_.of(group_.rank());
  const auto expected = recvs_.of(group_.rank());
  Transfer own{.kind = Kind::kHeaderRecv, .peer = group_.rank()};
  const CallHeader& header = peers_[static_cast<size_t>(group_.rank())].sent;
  own.buffer.resize(sizeof(header));
  std::memcpy(own.buffer.data(), &header, sizeof(header));
  take_header(own);
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].bytes > 0) {
      std::memcpy(expected[i].data, sent[i].data, static_cast<size_t>(sent[i].bytes));
    }
  }
}

// Why before MPI gets to know of it: nothing may fail from then on that would free the memory.
// Counted first, so that a call is not done without a transfer that there was no memory for.
MPI_Request* MpiExchange::add(Transfer transfer) {
  ++peers_[static_cast<size_t>(transfer.peer)].num_open;
  ++num_open_;
  transfers_.push_back(std::move(transfer));
  requests_.resize(transfers_.size(), MPI_REQUEST_NULL);
  return &requests_.back();
}

void MpiExchange::send_to(int peer) {
  Peer& state = peers_[static_cast<size_t>(peer)];
  const int64_t bytes = state.out.bytes();
  const int64_t inline_bytes = bytes <= kInlineBytes ? bytes : 0;

  Transfer incoming{.kind = Kind::kHeaderRecv, .peer = peer};
  incoming.buffer.resize(sizeof(CallHeader) + kInlineBytes);
  std::byte* data = incoming.buffer.data();
  const auto incoming_bytes = static_cast<int>(incoming.buffer.size());
  mpi_check(MPI_Irecv(data, incoming_bytes, MPI_BYTE, peer, kHeaderTag, group_.comm_,
                      add(std::move(incoming))),
            "MPI_Irecv", group_.rank());

  Transfer outgoing{.kind = Kind::kHeaderSend, .peer = peer};
  outgoing.buffer.resize(sizeof(CallHeader) + static_cast<size_t>(inline_bytes));
  std::memcpy(outgoing.buffer.data(), &state.sent, sizeof(CallHeader));
  state.out.copy_out(0, inline_bytes, outgoing.buffer.data() + sizeof(CallHeader));
  data = outgoing.buffer.data();
  const auto outgoing_bytes = static_cast<int>(outgoing.buffer.size());
  mpi_check(MPI_Isend(data, outgoing_bytes, MPI_BYTE, peer, kHeaderTag, group_.comm_,
                      add(std::move(outgoing))),
            "MPI_Isend", group_.rank());

  for (int64_t begin = inline_bytes; begin < bytes; begin += kCutBytes) {
    send_data(peer, begin, std::min(bytes, begin + kCutBytes));
  }
}

void MpiExchange::send_data(int peer, int64_t begin, int64_t end) {
  const ByteStream& out = peers_[static_cast<size_t>(peer)].out;
  Transfer transfer{.kind = Kind::kDataSend, .peer = peer, .begin = begin, .end = end};
  std::byte* data = out.contiguous(begin, end);
  if (data == nullptr) {
    transfer.copy.reset(new std::byte[static_cast<size_t>(end - begin)]);
    out.copy_out(begin, end, transfer.copy.get());
    data = transfer.copy.get();
  }
  mpi_check(MPI_Isend(data, static_cast<int>(end - begin), MPI_BYTE, peer, data_tag_, group_.comm_,
                      add(std::move(transfer))),
            "MPI_Isend", group_.rank());
}

void MpiExchange::receive_data(int peer, int64_t begin, int64_t end) {
  Transfer transfer{.kind = Kind::kDataRecv, .peer = peer, .begin = begin, .end = end};
  std::byte* data = peers_[static_cast<size_t>(peer)].in.contiguous(begin, end);
  if (data == nullptr) {
    transfer.copy.reset(new std::byte[static_cast<size_t>(end - begin)]);
    data = transfer.copy.get();
  }
  mpi_check(MPI_Irecv(data, static_cast<int>(end - begin), MPI_BYTE, peer, data_tag_, group_.comm_,
                      add(std::move(transfer))),
            "MPI_Irecv", group_.rank());
}

// Checks that both ends mean the same call and the same blocks, then takes or awaits the bytes.
void MpiExchange::take_header(const Transfer& transfer) {
  const int peer = transfer.peer;
  Peer& state = peers_[static_cast<size_t>(peer)];
  CallHeader header;
  std::memcpy(&header, transfer.buffer.data(), sizeof(header));
  if (auto failure = find_mismatch(group_.rank(), call_, peer, header, state.expected)) {
    group_.fail(call_, std::move(*failure));
  }
  state.has_arrived = true;
  if (peer == group_.rank()) {
    return;
  }
  if (header.bytes <= kInlineBytes) {
    state.in.copy_in(0, header.bytes, transfer.buffer.data() + sizeof(header));
    return;
  }
  for (int64_t begin = 0; begin < header.bytes; begin += kCutBytes) {
    receive_data(peer, begin, std::min(header.bytes, begin + kCutBytes));
  }
}

// What throws here leaves the transfer open, and so the call undone.
void MpiExchange::finish(Transfer& transfer) {
  const Transfer finished = std::move(transfer);  // the list grows below
  if (finished.kind == Kind::kHeaderRecv) {
    take_header(finished);
  } else if (finished.kind == Kind::kDataRecv && finished.copy) {
    peers_[static_cast<size_t>(finished.peer)].in.copy_in(finished.begin, finished.end,
                                                          finished.copy.get());
  }
  --peers_[static_cast<size_t>(finished.peer)].num_open;
  --num_open_;
}

bool MpiExchange::advance() {
  while (num_open_ > 0) {
    finished_.resize(requests_.size());
    int num_finished = 0;
    mpi_check(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &num_finished,
                           finished_.data(), MPI_STATUSES_IGNORE),
              "MPI_Testsome", group_.rank());
    if (num_finished <= 0) {  // MPI_UNDEFINED, for no open request, is negative
      return false;
    }
    for (int i = 0; i < num_finished; ++i) {
      finish(transfers_[static_cast<size_t>(finished_[static_cast<size_t>(i)])]);
    }
  }
  return is_done_ = shown_.show(group_, reader_, recv_list_);
}

// Ends what is under way.  The buffers of sends that have not ended are kept; where the memory is
// the caller's, or is being written by MPI, it must not be called again.
void MpiExchange::cancel() noexcept {
  constexpr std::chrono::milliseconds kGrace{100};  // for messages that are being moved
  const Deadline deadline = Deadline::after(kGrace);
  for (size_t i = 0; i < requests_.size(); ++i) {
    const Kind kind = transfers_[i].kind;
    if (requests_[i] != MPI_REQUEST_NULL &&
        (kind == Kind::kHeaderRecv || kind == Kind::kDataRecv)) {
      MPI_Cancel(&requests_[i]);
    }
  }
  for (size_t i = 0; i < requests_.size(); ++i) {
    int is_over = requests_[i] == MPI_REQUEST_NULL ? 1 : 0;
    while (is_over == 0) {
      MPI_Test(&requests_[i], &is_over, MPI_STATUS_IGNORE);
      if (is_over == 0 && deadline.expired()) {
        break;
      }
      if (is_over == 0) {
        std::this_thread::yield();
      }
    }
    if (is_over != 0) {
      continue;
    }
    if (transfers_[i].kind == Kind::kHeaderSend) {
      group_.kept_sends_.push_back({requests_[i], std::move(transfers_[i].buffer)});
    } else {
      group_.is_poisoned_ = true;
      // Leaked on purpose: MPI may still read or write them.
      (void)transfers_[i].copy.release();
      (void)new std::vector<std::byte>(std::move(transfers_[i].buffer));
    }
  }
}

PeerGroup::Wait MpiExchange::as_wait() const {
  return {call_, [this] { return is_done_; },
          [this](int peer) {
            const Peer& state = peers_[static_cast<size_t>(peer)];
            return state.num_open > 0 || !state.has_arrived;
          },
          [this](int peer) {
            return peers_[static_cast<size_t>(peer)].has_arrived
                       ? fmt::format("expected to send and receive {} and {} bytes",
                                     recvs_.bytes_of(peer), sends_.bytes_of(peer))
                       : fmt::format("expected at epoch {}", call_.epoch);
          }};
}

bool MpiExchange::test() {
  return is_done_ || group_.check(as_wait());
}

void MpiExchange::wait() {
  if (!is_done_) {
    group_.wait_for(as_wait());
  }
}

}  // namespace moebius::comm
