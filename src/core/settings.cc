// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>

#include "core/log_choice.h"
#include "core/settings_changes.h"
#include "moebius/deadline.h"
#include "moebius/error.h"

namespace moebius {

namespace {

constexpr int64_t kMost = 1'000'000'000;
constexpr int64_t kMostMs = std::chrono::milliseconds(Deadline::kMaxTimeout).count();
constexpr std::string_view kChoice = "when an implementation is chosen without a name";

constexpr SettingInfo kSettings[] = {
    {"MOEBIUS_LOG", "warn", "log level (error, warn, info, debug) and topics (dispatch)",
     "at the first message, and again after set_setting()"},
    {"MOEBIUS_THREADS", "all usable CPUs", "threads of a CPU stream that names none",
     "when such a stream is made", SettingRange{1, 4096}},
    {"MOEBIUS_SPIN_US", "2000; 0 with more threads than CPUs",
     "how long idle threads of CPU streams look for work before they sleep",
     "at the first parallel loop of a thread", SettingRange{0, 1'000'000}},
    {"MOEBIUS_BIND_THREADS", "0",
     "1 binds each of them to a CPU of the thread that makes the calls",
     "at the first parallel loop of a thread", SettingRange{0, 1}},
    {"MOEBIUS_EXECUTOR", "auto",
     "whose threads run loops of CPU streams: own, openmp for those of the OpenMP runtime that the "
     "process has loaded, as torch has, or auto for openmp where there is such a runtime",
     "at the first parallel loop of a thread"},
    {"MOEBIUS_NUMA", "off",
     "where experts on CPUs lie in the memory of several nodes: off, experts for a part of them on "
     "each node, whose threads begin with these, or interleave for their pages by turns",
     "when such experts are made"},
    {"MOEBIUS_NUMA_NODES", "those of the system",
     "pretends nodes for MOEBIUS_NUMA: lists of CPUs, as in 0-7/8-15",
     "when such experts are made"},
    {"MOEBIUS_TIMEOUT_MS", "60000", "how long a rank waits for another before it fails",
     "when a group whose options name no timeout is made", SettingRange{1, kMostMs}},
    {"MOEBIUS_LINK_LATENCY_US", "0",
     "slows rank threads down: what they send is seen this much later",
     "when a group of threads is made", SettingRange{0, kMost}},
    {"MOEBIUS_LINK_MB_PER_S", "as fast as memory is",
     "slows rank threads down: the speed from one to another", "when a group of threads is made",
     SettingRange{1, kMost}},
    {"MOEBIUS_CHUNK_TOKENS", "32768", "rows per pass through the experts",
     "when a layer or kernel whose options name none is made", SettingRange{1, int64_t{1} << 40}},
    {"MOEBIUS_ALLOW_NONFINITE", "0",
     "1 loads experts with NaN or infinite weights, whose outputs are NaN when quantized",
     "when experts are loaded whose options do not say it", SettingRange{0, 1}},
    {"MOEBIUS_QUANT", "first that accepts", "forces a quantization implementation",
     "at every quantize() and dequantize()"},
    {"MOEBIUS_ROUTER", "first that accepts", "forces a router implementation", kChoice},
    {"MOEBIUS_EXPERTS", "first that accepts", "forces an experts implementation", kChoice},
    {"MOEBIUS_CPU_VECTORS", "widest at hand",
     "forces the vectors of cpu_portable (vnni, avx2, plain)", "when such experts are made"},
    {"MOEBIUS_FETCH_AHEAD", "1024; 4096 with 48 KiB of L1",
     "how many bytes ahead experts on CPUs fetch weights that few rows are multiplied by; unset, "
     "AVX-512 kernels on Intel fetch from four pages by turns",
     "when such experts are made", SettingRange{0, 1 << 20}},
    {"MOEBIUS_PANEL_BYTES", "five eighths of L2, at least 1.25 MiB",
     "bytes of activations that experts on CPUs multiply by a weight at a time",
     "when such experts are made", SettingRange{1, int64_t{1} << 30}},
    {"MOEBIUS_GEMM", "as the plan says",
     "forces the GEMM of experts on GPUs (thin, sm90, few_rows, mma, general)",
     "when experts are made and at every call of theirs that is no replay"},
    {"MOEBIUS_REPLAYS", "1",
     "0 launches the kernels of a layer of one GPU in every call, 1 replays calls that repeat",
     "at the first call of a layer, and again after set_setting()", SettingRange{0, 1}},
    {"MOEBIUS_MPI_LIBRARY", "libmoebius_mpi.so", "what mpi groups load: MPI behind our own table",
     "at the first mpi group"},
    {"MOEBIUS_NCCL_LIBRARY", "libnccl.so.2", "the NCCL library that nccl groups load",
     "at the first nccl group"},
};

const SettingInfo* find_setting(std::string_view name) {
  const auto* found = std::find_if(std::begin(kSettings), std::end(kSettings),
                                   [&](const SettingInfo& info) { return info.name == name; });
  return found == std::end(kSettings) ? nullptr : found;
}

const SettingInfo& known_setting(std::string_view name) {
  const SettingInfo* found = find_setting(name);
  expect(found != nullptr, [&] { return fmt::format("there is no setting \"{}\"", name); });
  return *found;
}

int64_t parse_number(const SettingInfo& info, std::string_view text) {
  const auto [low, high] = *info.numbers;
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, status] = std::from_chars(text.data(), end, value);
  if (status != std::errc() || parsed != end || value < low || value > high) {
    throw InvalidArgument(fmt::format("{} is \"{}\", expected a whole number from {} to {}",
                                      info.name, text, low, high));
  }
  return value;
}

// The values that set_setting() has given.
struct Given {
  std::atomic<uint64_t> num_changes{0};  // 0: no value was ever given, so no lock is needed
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> values;
};

Given& given() {
  static auto& instance = *new Given;  // leaked: logs of destructors after main() read settings
  return instance;
}

}  // namespace

std::span<const SettingInfo> all_settings() {
  return kSettings;
}

std::optional<std::string> setting(std::string_view name) {
  assert(find_setting(name) != nullptr);
  if (Given& all = given(); all.num_changes.load(std::memory_order_acquire) > 0) {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.values.find(name); found != all.values.end()) {
      return found->second.empty() ? std::nullopt : std::optional(found->second);
    }
  }
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> setting_int(std::string_view name) {
  const auto text = setting(name);
  if (!text) {
    return std::nullopt;
  }
  const SettingInfo& info = known_setting(name);
  assert(info.numbers);
  return parse_number(info, *text);
}

void set_setting(std::string_view name, std::string_view value) {
  const SettingInfo& info = known_setting(name);
  if (info.numbers && !value.empty()) {
    parse_number(info, value);
  }
  if (name == "MOEBIUS_LOG") {
    if (const LogChoice choice = parse_log_choice(value); !choice.error.empty()) {
      throw InvalidArgument(choice.error);
    }
  }
  Given& all = given();
  const std::lock_guard lock(all.mutex);
  all.values.insert_or_assign(std::string(name), std::string(value));
  all.num_changes.fetch_add(1, std::memory_order_release);
}

void clear_setting(std::string_view name) {
  known_setting(name);
  Given& all = given();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.values.find(name); found != all.values.end()) {
    all.values.erase(found);
    all.num_changes.fetch_add(1, std::memory_order_release);
  }
}

uint64_t num_setting_changes() {
  return given().num_changes.load(std::memory_order_acquire);
}

}  // namespace moebius
