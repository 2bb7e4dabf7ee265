// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A group of rank threads whose windows lie on GPUs.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/cuda/runtime.h"
#include "moebius/group.h"

namespace moebius::testing {

class CudaTestGroup final : public Group {
 public:
  CudaTestGroup(Group& host, int device)
      : Group(host.topology(), host.timeout()), host_(host), device_(device) {
    devices_.resize(static_cast<size_t>(size()));
    all_gather_bytes(host_, "devices", &device_, sizeof(device_), devices_.data());
  }

  std::string_view name() const override { return "cuda test"; }
  bool shares_address_space() const override { return false; }
  void barrier(std::string_view op) override { host_.barrier(op); }
  std::unique_ptr<Exchange> start_exchange(std::string_view op,
                                           std::span<const SendBlock> sends,
                                           std::span<const RecvBlock> recvs,
                                           BlockReader reader) override {
    return host_.start_exchange(op, sends, recvs, std::move(reader));
  }
  std::unique_ptr<Window> make_window(std::string_view op, int64_t bytes) override {
    auto window = std::make_unique<PeerWindow>();
    window->bytes_ = bytes;
    window->rank_ = rank();
    const auto own = cuda::allocate_shared(bytes, device_, devices_);
    cuda::fill_zero_now(own.get(), bytes, device_);
    const std::vector<SendBlock> sends = blocks<SendBlock>(&own, sizeof(own));
    const std::vector<RecvBlock> recvs = blocks<RecvBlock>(nullptr, sizeof(own));
    host_.exchange(op, sends, recvs, [&](std::span<const std::byte* const> received) {
      for (const std::byte* block : received) {
        window->memory_.push_back(*reinterpret_cast<const std::shared_ptr<void>*>(block));
      }
    });
    return window;
  }
  void wait_until(std::string_view op,
                  int peer,
                  const std::function<bool()>& ready,
                  const std::function<std::string()>& describe) override {
    host_.wait_until(op, peer, ready, describe);
  }
  void abort(std::string_view why) noexcept override { host_.abort(why); }
  void set_dead(int peer, bool dead) override { host_.set_dead(peer, dead); }
  bool is_dead(int peer) const override { return host_.is_dead(peer); }

 private:
  struct PeerWindow final : Window {
    int64_t bytes() const override { return bytes_; }
    std::byte* local() const override { return peer(rank_); }
    std::byte* peer(int rank) const override {
      return static_cast<std::byte*>(memory_[static_cast<size_t>(rank)].get());
    }
    int64_t bytes_ = 0;
    int rank_ = 0;
    std::vector<std::shared_ptr<void>> memory_;  // by rank
  };

  template <typename Block, typename Data>
  std::vector<Block> blocks(Data data, size_t bytes) const {
    std::vector<Block> result;
    for (int r = 0; r < size(); ++r) {
      result.push_back({r, data, static_cast<int64_t>(bytes)});
    }
    return result;
  }

  Group& host_;
  int device_;
  std::vector<int> devices_;
};

}  // namespace moebius::testing
