// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What is the same for the whole process: settings, logs, interruption, memory and threads.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "c_api/structs.h"
#include "moebius/allocator.h"
#include "moebius/device.h"
#include "moebius/interrupt.h"
#include "moebius/log.h"
#include "moebius/parallel_executor.h"
#include "moebius/settings.h"

namespace moebius::c_api {

namespace {

class GivenAllocator : public Allocator {
 public:
  explicit GivenAllocator(const moebius_allocator& given) : given_(given) {}
  ~GivenAllocator() override {
    if (given_.destroy != nullptr) {
      given_.destroy(given_.user);
    }
  }

  void* allocate(int64_t bytes, int64_t alignment, Device device, void* stream) override {
    return given_.allocate(given_.user, bytes, alignment, device_of(device), stream);
  }
  void deallocate(void* data, int64_t bytes, Device device, void* stream) noexcept override {
    given_.deallocate(given_.user, data, bytes, device_of(device), stream);
  }

 private:
  moebius_allocator given_;
};

class GivenExecutor : public ParallelExecutor {
 public:
  GivenExecutor(moebius_executor_function function, void* user)
      : function_(function), user_(user) {}

  void run(int num_threads, Job job, void* context) override {
    if (const int32_t code = function_(user_, num_threads, job, context); code != 0) {
      throw CallbackFailed(fmt::format("the executor function returned {}, expected 0", code));
    }
  }

 private:
  moebius_executor_function function_;
  void* user_;
};

}  // namespace

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_set_setting(const char* name, const char* value) {
  return guarded([&] {
    const std::string variable = read_text(name, "name");
    if (value == nullptr) {
      clear_setting(variable);
    } else {
      set_setting(variable, value);
    }
  });
}

moebius_status moebius_get_setting(const char* name, char* value, size_t room, size_t* bytes) {
  return guarded([&] {
    const std::string variable = read_text(name, "name");
    const auto all = all_settings();
    expect(std::any_of(all.begin(), all.end(), [&](const auto& s) { return s.name == variable; }),
           [&] { return fmt::format("there is no setting {}", variable); });
    const std::string text = setting(variable).value_or("");
    const size_t needed = text.size() + 1;
    if (value != nullptr || room != 0) {
      expect(value != nullptr, "value is null, expected a place to write");
      expect(room >= needed,
             [&] { return fmt::format("room is {}, expected at least {}", room, needed); });
      std::memcpy(value, text.c_str(), needed);
    }
    if (bytes != nullptr) {
      *bytes = needed;
    }
  });
}

int64_t moebius_num_settings(void) {
  return static_cast<int64_t>(all_settings().size());
}

moebius_status moebius_setting_at(int64_t index, moebius_setting_info* info) {
  return guarded([&] {
    expect_ge(index, 0, "index");
    expect_le(index, moebius_num_settings() - 1, "index");
    // The table has literals.
    const SettingInfo& setting = all_settings()[static_cast<size_t>(index)];
    write_struct(info, "info",
                 {.struct_size = 0,
                  .name = setting.name.data(),
                  .default_value = setting.default_value.data(),
                  .meaning = setting.meaning.data(),
                  .read = setting.read.empty() ? "" : setting.read.data()});
  });
}

moebius_status moebius_set_log_function(moebius_log_function function, void* user) {
  return guarded([&] {
    if (function == nullptr) {
      set_log_callback({});
      return;
    }
    set_log_callback(
        [function, user](LogLevel level, std::string_view topic, std::string_view message) {
          function(user, static_cast<int32_t>(level), std::string(topic).c_str(),
                   std::string(message).c_str());
        });
  });
}

moebius_status moebius_set_interrupt_function(moebius_interrupt_function function, void* user) {
  return guarded([&] {
    if (function == nullptr) {
      set_interrupt_check({});
    } else {
      set_interrupt_check([function, user] { return function(user) != 0; });
    }
  });
}

int32_t moebius_cuda_device_count(void) {
  return cuda_device_count();
}

moebius_status moebius_expect_usable(moebius_device device) {
  return guarded([&] { expect_usable(read_device(device)); });
}

moebius_status moebius_set_allocator(moebius_device device, const moebius_allocator* allocator) {
  return guarded([&] {
    const Device where = read_device(device);
    if (allocator == nullptr) {
      set_allocator(where, nullptr);
      return;
    }
    const moebius_allocator given = read_struct(allocator, "allocator");
    expect(given.allocate != nullptr && given.deallocate != nullptr,
           "allocate or deallocate of the allocator is null, expected both");
    set_allocator(where, std::make_shared<GivenAllocator>(given));
  });
}

moebius_status moebius_get_memory_statistics(moebius_device device,
                                             moebius_memory_statistics* statistics) {
  return guarded([&] {
    const MemoryStatistics seen = memory_statistics(read_device(device));
    write_struct(statistics, "statistics",
                 {.struct_size = 0,
                  .bytes = seen.bytes,
                  .peak_bytes = seen.peak_bytes,
                  .num_blocks = seen.num_blocks,
                  .num_allocations = seen.num_allocations});
  });
}

moebius_status moebius_reset_peak_memory(moebius_device device) {
  return guarded([&] { reset_peak_memory(read_device(device)); });
}

moebius_status moebius_trim_memory(moebius_device device) {
  return guarded([&] { trim_memory(read_device(device)); });
}

moebius_status moebius_set_executor(moebius_executor_function function, void* user) {
  return guarded([&] {
    set_parallel_executor(function == nullptr ? nullptr
                                              : std::make_shared<GivenExecutor>(function, user));
  });
}
