// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One exchange.  Every rank sends every other a header, which carries the bytes too where they are
// few.  More bytes follow in messages of up to kCutBytes, which the receiver takes once the header
// has shown that both ends agree.
#pragma once

#include <memory>
#include <vector>

#include "comm/group/blocks.h"
#include "comm/group/byte_stream.h"
#include "comm/group/call_header.h"
#include "comm/group/mpi/mpi_group.h"
#include "comm/group/shown_blocks.h"

namespace moebius::comm {

constexpr int kHeaderTag = 1;
constexpr int kNoticeTag = 2;
constexpr int kDataTag = 16;  // + epoch % kMaxStarted
constexpr int64_t kInlineBytes = 1024;
constexpr int64_t kCutBytes = int64_t{256} << 20;  // the count of an MPI message is an int

class MpiExchange final : public Exchange {
 public:
  MpiExchange(MpiGroup& group,
              const Call& call,
              std::span<const SendBlock> sends,
              std::span<const RecvBlock> recvs,
              BlockReader reader);
  ~MpiExchange() override;

  bool test() override;
  void wait() override;

  // Takes what has arrived; true once nothing is left to do.  May fail the group.
  bool advance();
  int64_t epoch() const { return call_.epoch; }

 private:
  enum class Kind { kHeaderSend, kHeaderRecv, kDataSend, kDataRecv };
  struct Transfer {
    Kind kind;
    int peer;
    int64_t begin = 0, end = 0;           // part of the stream
    std::vector<std::byte> buffer{};      // of headers
    std::unique_ptr<std::byte[]> copy{};  // of data that do not lie together
  };
  struct Peer {
    ByteStream out;
    ByteStream in;
    CallHeader sent;
    CallHeader expected;  // num_blocks, bytes and sizes_hash
    bool has_arrived = false;
    int num_open = 0;  // transfers under way
  };

  PeerGroup::Wait as_wait() const;
  void copy_own();
  // Where MPI is to put its request.
  MPI_Request* add(Transfer transfer);
  void send_to(int peer);
  void send_data(int peer, int64_t begin, int64_t end);
  void receive_data(int peer, int64_t begin, int64_t end);
  void finish(Transfer& transfer);
  void take_header(const Transfer& transfer);
  void cancel() noexcept;

  MpiGroup& group_;
  const Call call_;
  const int data_tag_;
  BlocksByPeer<SendBlock> sends_;
  std::vector<RecvBlock> recv_list_;  // in the caller's order
  BlocksByPeer<RecvBlock> recvs_;
  BlockReader reader_;
  ShownBlocks shown_;
  bool is_done_ = false;
  std::vector<Peer> peers_;
  std::vector<Transfer> transfers_;
  std::vector<MPI_Request> requests_;  // of transfers_
  size_t num_open_ = 0;
  std::vector<int> finished_;  // what MPI_Testsome found
};

}  // namespace moebius::comm
