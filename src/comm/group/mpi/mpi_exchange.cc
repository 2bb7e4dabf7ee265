// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/mpi/mpi_exchange.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "comm/group/mpi/loaded_mpi.h"
#include "moebius/deadline.h"

namespace moebius::comm {

MpiExchange::MpiExchange(MpiGroup& group, const Call& call, ExchangeBlocks blocks)
    : StreamExchange(group, call, std::move(blocks)),
      mpi_(group),
      data_tag_(kDataTag + static_cast<int>(call.epoch % Group::kMaxStarted)),
      num_open_with_(static_cast<size_t>(group.size())) {
  start();
  try {
    for (int i = 1; i < group.size(); ++i) {
      send_to((group.rank() + i) % group.size());
    }
    copy_own();
  } catch (...) {
    stop();
    cancel();
    throw;
  }
}

MpiExchange::~MpiExchange() {
  if (!is_done_) {
    cancel();
    abandon();
  }
}

void MpiExchange::post(Transfer transfer, std::byte* data, int64_t bytes, int tag) {
  const int rank = transfer.peer;
  const bool is_send = transfer.kind == Kind::kHeaderSend || transfer.kind == Kind::kDataSend;
  // Why the transfer is stored before MPI gets to know of it: nothing may fail from then on that
  // would free the memory.  It is counted first, so that a call is not done without a transfer that
  // there was no memory for.
  ++num_open_with_[static_cast<size_t>(rank)];
  ++num_open_;
  transfers_.push_back(std::move(transfer));
  requests_.resize(transfers_.size(), mpi().no_request);
  MpiRequest* request = &requests_.back();
  const auto count = static_cast<size_t>(bytes);
  mpi_check(is_send ? mpi().isend(mpi_.comm_, data, count, rank, tag, request)
                    : mpi().irecv(mpi_.comm_, data, count, rank, tag, request),
            is_send ? "MPI_Isend" : "MPI_Irecv", group_.rank());
}

void MpiExchange::send_to(int rank) {
  Transfer incoming{.kind = Kind::kHeaderRecv, .peer = rank};
  incoming.buffer.reset(new std::byte[kHeaderBytes + kInlineBytes]);
  std::byte* data = incoming.buffer.get();
  post(std::move(incoming), data, kHeaderBytes + kInlineBytes, kHeaderTag);

  const ByteStream& out = peer(rank).out;
  const int64_t head = out.bytes() - kHeaderBytes <= kInlineBytes ? out.bytes() : kHeaderBytes;
  Transfer outgoing{.kind = Kind::kHeaderSend, .peer = rank};
  outgoing.buffer.reset(new std::byte[static_cast<size_t>(head)]);
  data = outgoing.buffer.get();
  out.copy_out(0, head, data);
  post(std::move(outgoing), data, head, kHeaderTag);
  move_data(Kind::kDataSend, rank, head);
}

void MpiExchange::move_data(Kind kind, int rank, int64_t begin) {
  const bool is_send = kind == Kind::kDataSend;
  const ByteStream& stream = is_send ? peer(rank).out : peer(rank).in;
  for (int64_t end = begin; begin < stream.bytes(); begin = end) {
    end = std::min(stream.bytes(), begin + kCutBytes);
    Transfer transfer{.kind = kind, .peer = rank, .begin = begin, .end = end};
    std::byte* data = stream.contiguous(begin, end);
    if (data == nullptr) {
      transfer.copy.reset(new std::byte[static_cast<size_t>(end - begin)]);
      data = transfer.copy.get();
      if (is_send) {
        stream.copy_out(begin, end, data);
      }
    }
    post(std::move(transfer), data, end - begin, data_tag_);
  }
}

// Checks the header, then takes or awaits the bytes.
void MpiExchange::take_header(const Transfer& transfer) {
  Peer& from = peer(transfer.peer);
  std::memcpy(&from.seen, transfer.buffer.get(), kHeaderBytes);
  check_header(transfer.peer);
  from.has_arrived = true;
  if (from.in.bytes() - kHeaderBytes <= kInlineBytes) {
    from.in.copy_in(kHeaderBytes, from.in.bytes(), transfer.buffer.get() + kHeaderBytes);
  } else {
    move_data(Kind::kDataRecv, transfer.peer, kHeaderBytes);
  }
}

// An exception here leaves the transfer open, and so the call undone.
void MpiExchange::take(Transfer& transfer) {
  const Transfer finished = std::move(transfer);  // the list grows below
  if (finished.kind == Kind::kHeaderRecv) {
    take_header(finished);
  } else if (finished.kind == Kind::kDataRecv && finished.copy) {
    peer(finished.peer).in.copy_in(finished.begin, finished.end, finished.copy.get());
  }
  --num_open_with_[static_cast<size_t>(finished.peer)];
  --num_open_;
}

bool MpiExchange::advance() {
  while (num_open_ > 0) {
    finished_.resize(requests_.size());
    int num_finished = 0;
    mpi_check(mpi().test_some(static_cast<int>(requests_.size()), requests_.data(), &num_finished,
                              finished_.data()),
              "MPI_Testsome", group_.rank());
    if (num_finished == 0) {
      return false;
    }
    for (int i = 0; i < num_finished; ++i) {
      take(transfers_[static_cast<size_t>(finished_[static_cast<size_t>(i)])]);
    }
  }
  return finish();
}

// Ends the transfers that are under way.  Where one of the caller's memory has not ended, MPI still
// uses what may be gone, and must not be called again.
void MpiExchange::cancel() noexcept {
  constexpr std::chrono::milliseconds kGrace{100};  // for messages that are being moved
  const Deadline deadline = Deadline::after(kGrace);
  const bool may_call = !is_mpi_poisoned();
  for (size_t i = 0; may_call && i < requests_.size(); ++i) {
    const Kind kind = transfers_[i].kind;
    if (requests_[i] != mpi().no_request &&
        (kind == Kind::kHeaderRecv || kind == Kind::kDataRecv)) {
      mpi().cancel(&requests_[i]);
    }
  }
  bool is_left = false;
  for (size_t i = 0; i < requests_.size(); ++i) {
    int is_over = requests_[i] == mpi().no_request ? 1 : 0;
    while (may_call && is_over == 0) {
      mpi().test(&requests_[i], &is_over);
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
    Transfer& transfer = transfers_[i];
    is_left = is_left || (transfer.buffer == nullptr && transfer.copy == nullptr);
    if (transfer.kind == Kind::kHeaderSend) {
      keep(requests_[i], std::move(transfer.buffer));
    } else {
      // Leaked on purpose: MPI may still read or write them.
      (void)transfer.copy.release();
      (void)transfer.buffer.release();
    }
  }
  if (may_call && is_left) {
    mpi_.abandon(call_);
    mpi_.end_with_mpi();
  }
}

void MpiExchange::keep(MpiRequest request, std::unique_ptr<std::byte[]> buffer) noexcept {
  try {
    mpi_.kept_sends_.emplace_back().request = request;
    mpi_.kept_sends_.back().buffer = std::move(buffer);
  } catch (const std::bad_alloc&) {
    (void)buffer.release();  // leaked
  }
}

bool MpiExchange::is_missing(int rank) const {
  return num_open_with_[static_cast<size_t>(rank)] > 0 || !has_arrived(rank);
}

}  // namespace moebius::comm
