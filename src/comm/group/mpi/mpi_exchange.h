// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One exchange over MPI.  The first message to each peer is the header, with all bytes behind it
// where they are few.  More bytes follow in messages of up to kCutBytes, which the receiver takes
// once the header has shown that both ends agree.
#pragma once

#include <memory>
#include <vector>

#include "comm/group/mpi/mpi_group.h"
#include "comm/group/stream_exchange.h"

namespace moebius::comm {

constexpr int kHeaderTag = 1;
constexpr int kNoticeTag = 2;
constexpr int kDataTag = 16;  // + epoch % kMaxStarted
constexpr int64_t kInlineBytes = 1024;
constexpr int64_t kCutBytes = int64_t{256} << 20;  // the count of an MPI message is an int

class MpiExchange final : public StreamExchange {
 public:
  MpiExchange(MpiGroup& group, const Call& call, ExchangeBlocks blocks);
  ~MpiExchange() override;

  bool advance() override;

 private:
  enum class Kind { kHeaderSend, kHeaderRecv, kDataSend, kDataRecv };
  struct Transfer {
    Kind kind;
    int peer;
    int64_t begin = 0, end = 0;             // of the stream's bytes
    std::unique_ptr<std::byte[]> buffer{};  // for a header
    std::unique_ptr<std::byte[]> copy{};    // for blocks that do not lie together
  };

  bool is_missing(int rank) const override;
  // Sends or receives the transfer's bytes, which lie at `data`.
  void post(Transfer transfer, std::byte* data, int64_t bytes, int tag);
  void send_to(int rank);
  // Moves all bytes of the peer's stream from `begin` on.
  void move_data(Kind kind, int rank, int64_t begin);
  void take(Transfer& transfer);
  void take_header(const Transfer& transfer);
  void cancel() noexcept;
  // Lets the buffer of a header live until MPI has sent it.
  void keep(MpiRequest request, std::unique_ptr<std::byte[]> buffer) noexcept;

  MpiGroup& mpi_;
  const int data_tag_;
  std::vector<Transfer> transfers_;
  std::vector<MpiRequest> requests_;  // of transfers_
  std::vector<int> num_open_with_;    // [num_ranks] transfers under way
  size_t num_open_ = 0;               // with all peers
  std::vector<int> finished_;         // what MPI found
};

}  // namespace moebius::comm
