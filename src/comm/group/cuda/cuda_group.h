// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CudaGroup: a host group whose ranks have a GPU each.  The host group makes all host calls, so
// that failures are handled in one place.  A DeviceProvider makes windows of GPU memory and moves
// blocks between GPUs.
#pragma once

#include <memory>

#include "comm/group/blocks.h"
#include "moebius/group.h"
#include "moebius/support.h"

namespace moebius::comm {

// What a rank sends and receives in one call, without blocks of no bytes.
struct DeviceBlocks {
  BlocksByPeer<SendBlock> sends;
  BlocksByPeer<RecvBlock> recvs;
};

// Makes memory of GPUs that peers reach by load and store, and copies between GPUs.
class DeviceProvider {
 public:
  virtual ~DeviceProvider() = default;
  virtual std::string_view name() const = 0;  // the group's name
  // Collective over `host`.  All ranks ask for the same bytes.
  virtual std::unique_ptr<Window> map_window(Group& host, std::string_view op, int64_t bytes) = 0;
  // As Group::exchange_on.  REQUIRES: all ranks have come, and blocks match at both ends.
  virtual void exchange_on(const Stream& stream,
                           Group& host,
                           std::string_view op,
                           const DeviceBlocks& blocks) = 0;
  virtual bool has_given_up() const { return false; }  // as Group::has_given_up
  // Whether CUDA graphs can hold what exchange_on() enqueues; the same on all ranks.
  virtual Support can_be_captured() const = 0;
};

// Enqueues a copy of each block of `from`, on GPU `from_index`, to the same of `to`, on the
// stream's GPU.
void copy_blocks(std::span<const SendBlock> from,
                 int from_index,
                 std::span<const RecvBlock> to,
                 const Stream& stream);

class CudaGroup final : public Group {
 public:
  CudaGroup(std::unique_ptr<Group> host, Device device, std::unique_ptr<DeviceProvider> provider);

  std::string_view name() const override { return provider_->name(); }
  Device device() const override { return device_; }
  std::unique_ptr<Window> make_window(std::string_view op, int64_t bytes) override;
  void exchange_on(const Stream& stream,
                   std::string_view op,
                   std::span<const SendBlock> sends,
                   std::span<const RecvBlock> recvs) override;

  bool has_given_up() const override { return provider_->has_given_up(); }
  Support can_be_captured() const { return provider_->can_be_captured(); }

  int64_t epoch() const override { return host_->epoch(); }
  Traffic traffic() const override { return host_->traffic(); }
  std::chrono::nanoseconds waited() const override { return host_->waited(); }
  void count_traffic(int peer, int64_t bytes) override { host_->count_traffic(peer, bytes); }
  void set_profile(Profile* profile) override { host_->set_profile(profile); }
  bool shares_address_space() const override { return host_->shares_address_space(); }
  void barrier(std::string_view op) override { host_->barrier(op); }
  void leave() override { host_->leave(); }
  std::unique_ptr<Exchange> start_exchange(std::string_view op,
                                           std::span<const SendBlock> sends,
                                           std::span<const RecvBlock> recvs,
                                           BlockReader reader) override;
  void wait_until(std::string_view op,
                  int peer,
                  const std::function<bool()>& ready,
                  const std::function<std::string()>& describe) override;
  void abort(std::string_view why) noexcept override { host_->abort(why); }
  bool is_missed() noexcept override { return host_->is_missed(); }
  void set_dead(int rank, bool dead) override { host_->set_dead(rank, dead); }
  bool is_dead(int rank) const override { return host_->is_dead(rank); }

 private:
  const std::unique_ptr<Group> host_;  // destroyed after the provider, which may still need it
  const Device device_;
  const std::unique_ptr<DeviceProvider> provider_;
};

// Collective.  Makes windows through peer access.  Throws Unsupported on every rank when a GPU of a
// node cannot reach another's memory.  REQUIRES: ranks share an address space.
std::unique_ptr<DeviceProvider> make_peer_access(Group& host, Device device);
// Collective.  The same for ranks that are processes of one machine, by CUDA's interprocess
// handles.
std::unique_ptr<DeviceProvider> make_ipc_access(Group& host, Device device);

}  // namespace moebius::comm
