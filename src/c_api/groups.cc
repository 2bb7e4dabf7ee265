// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "c_api/structs.h"

namespace moebius::c_api {

Group& GroupObject::get() const {
  expect(group != nullptr, "this group was given to a group of GPUs, expected one that is in use");
  return *group;
}

namespace {

moebius_group_options read_options(const moebius_group_options* options) {
  return read_optional(options, "options");
}

moebius_group give(std::unique_ptr<Group> group) {
  return group == nullptr ? nullptr : make_handle(std::make_shared<GroupObject>(std::move(group)));
}

// Gives the host group to make(), and destroys its handle if that succeeds.
void give_over(moebius_group host, moebius_group* group, const auto& make) {
  moebius_group& place = expect_out(group, "group");
  {
    const Using<GroupObject> used(host);
    used->get();
    // Objects that were made from it hold it, too, and would lose it.
    expect(used.object().use_count() <= 2,
           "objects were made from the host group, expected it unused");
    place = give(make(std::move(used->group)));
  }
  destroy_handle<GroupObject>(host);
}

}  // namespace

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_make_thread_groups(int32_t num_ranks,
                                          const moebius_group_options* options,
                                          moebius_group* groups) {
  return guarded([&] {
    expect_out(groups, "groups");
    const moebius_group_options given = read_options(options);
    ThreadGroupOptions threads;
    threads.ranks_per_node = given.ranks_per_node;
    threads.timeout = std::chrono::milliseconds(given.timeout_ms);
    std::vector<moebius_group> handles;
    for (auto& made : make_thread_groups(read_num_ranks(num_ranks), threads)) {
      handles.push_back(give(std::move(made)));
    }
    std::copy(handles.begin(), handles.end(), groups);
  });
}

moebius_status moebius_make_process_group(int32_t rank,
                                          int32_t size,
                                          moebius_all_gather_function all_gather,
                                          void* user,
                                          const moebius_group_options* options,
                                          moebius_group* group) {
  return giving(group, "group", [&] {
    const moebius_group_options given = read_options(options);
    Bootstrap bootstrap{.rank = rank,
                        .size = size,
                        .all_gather = {},
                        .timeout = std::chrono::milliseconds(given.timeout_ms),
                        .ranks_per_node = given.ranks_per_node};
    if (all_gather != nullptr) {
      bootstrap.all_gather = [&](const void* in, int64_t bytes, void* out) {
        if (const int32_t code = all_gather(user, in, bytes, out); code != 0) {
          throw CallbackFailed(
              fmt::format("the all-gather function returned {}, expected 0", code));
        }
      };
    }
    return give(make_process_group(bootstrap));
  });
}

moebius_status moebius_make_mpi_group(const void* comm,
                                      const moebius_group_options* options,
                                      moebius_group* group) {
  return giving(group, "group", [&] {
    const moebius_group_options given = read_options(options);
    return give(make_mpi_group({.ranks_per_node = given.ranks_per_node,
                                .timeout = std::chrono::milliseconds(given.timeout_ms),
                                .comm = comm}));
  });
}

moebius_status moebius_make_cuda_group(moebius_group host, int32_t index, moebius_group* group) {
  return guarded([&] {
    give_over(host, group, [&](std::unique_ptr<Group>&& given) {
      return make_cuda_group(std::move(given), Device::cuda(read_cuda_index(index)));
    });
  });
}

moebius_status moebius_make_nccl_group(moebius_group host,
                                       int32_t index,
                                       void* comm,
                                       moebius_group* group) {
  return guarded([&] {
    give_over(host, group, [&](std::unique_ptr<Group>&& given) {
      return make_nccl_group(std::move(given), Device::cuda(read_cuda_index(index)), comm);
    });
  });
}

moebius_status moebius_make_nccl_group_of(void* comm, int64_t timeout_ms, moebius_group* group) {
  return giving(group, "group", [&] {
    expect(comm != nullptr, "comm is null, expected an ncclComm_t");
    return give(make_nccl_group(comm, std::chrono::milliseconds(timeout_ms)));
  });
}

moebius_status moebius_group_get_info(moebius_group group, moebius_group_info* info) {
  return guarded([&] {
    const Using<GroupObject> used(group);
    const Group& of = used->get();
    const Topology& topology = of.topology();
    const Traffic traffic = of.traffic();
    write_struct(info, "info",
                 {.struct_size = 0,
                  .rank = of.rank(),
                  .size = of.size(),
                  .node = topology.node(),
                  .num_nodes = topology.num_nodes(),
                  .local_rank = topology.local_rank(),
                  .ranks_on_node = topology.node_size(topology.node()),
                  .device = device_of(of.device()),
                  .timeout_ms = of.timeout().count(),
                  .waited_ns = of.waited().count(),
                  .bytes_sent = traffic.intra_node_bytes + traffic.inter_node_bytes,
                  .name = of.name().data()});
  });
}

moebius_status moebius_group_barrier(moebius_group group) {
  return guarded([&] { Using<GroupObject>(group)->get().barrier("barrier"); });
}

moebius_status moebius_group_all_gather(moebius_group group,
                                        const void* in,
                                        int64_t bytes,
                                        void* out) {
  return guarded([&] {
    const Using<GroupObject> used(group);
    expect_ge(bytes, 0, "bytes");
    expect((in != nullptr && out != nullptr) || bytes == 0, "in or out is null");
    all_gather_bytes(used->get(), "all_gather", in, bytes, out);
  });
}

moebius_status moebius_group_split(moebius_group group,
                                   int32_t color,
                                   int32_t key,
                                   moebius_group* part) {
  return giving(part, "part",
                [&] { return give(Using<GroupObject>(group)->get().split(color, key)); });
}

moebius_status moebius_group_abort(moebius_group group, const char* why) {
  return guarded([&] {
    const std::string reason = read_text(why, "why");
    Using<GroupObject>(group)->get().abort(reason);
  });
}

moebius_status moebius_group_set_dead(moebius_group group, int32_t rank, int32_t is_dead) {
  return guarded([&] {
    const bool dead = read_flag(is_dead, "is_dead");
    Using<GroupObject>(group)->get().set_dead(rank, dead);
  });
}

moebius_status moebius_group_destroy(moebius_group group) {
  return guarded([&] { destroy_handle<GroupObject>(group); });
}
