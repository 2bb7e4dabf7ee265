// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cstdlib>
#include <iterator>

#include "moebius/error.h"

namespace moebius {

namespace {

constexpr SettingInfo kSettings[] = {
    {"MOEBIUS_LOG", "warn", "log level (error, warn, info, debug) and topics (dispatch)"},
    {"MOEBIUS_THREADS", "all usable CPUs", "threads of a CPU stream that names none"},
    {"MOEBIUS_SPIN_US", "2000; 0 with more threads than CPUs",
     "how long idle threads of CPU streams look for work before they sleep"},
    {"MOEBIUS_BIND_THREADS", "0",
     "1 binds each of them to a CPU of the thread that makes the calls"},
    {"MOEBIUS_TIMEOUT_MS", "60000", "how long a rank waits for another before it fails"},
    {"MOEBIUS_LINK_LATENCY_US", "0",
     "slows rank threads down: what they send is seen this much later"},
    {"MOEBIUS_LINK_MB_PER_S", "as fast as memory is",
     "slows rank threads down: the speed from one to another"},
    {"MOEBIUS_CHUNK_TOKENS", "32768", "rows per pass through the experts"},
    {"MOEBIUS_ALLOW_NONFINITE", "0",
     "1 loads experts with NaN or infinite weights, whose outputs are NaN when quantized"},
    {"MOEBIUS_QUANT", "first that accepts", "forces a quantization implementation"},
    {"MOEBIUS_ROUTER", "first that accepts", "forces a router implementation"},
    {"MOEBIUS_EXPERTS", "first that accepts", "forces an experts implementation"},
    {"MOEBIUS_CPU_VECTORS", "widest at hand",
     "forces the vectors of cpu_portable (vnni, avx2, plain)"},
    {"MOEBIUS_GEMM", "as the plan says",
     "forces the GEMM of experts on GPUs (sm90, few_rows, mma, general)"},
    {"MOEBIUS_MPI_LIBRARY", "libmoebius_mpi.so", "what mpi groups load: MPI behind our own table"},
    {"MOEBIUS_NCCL_LIBRARY", "libnccl.so.2", "the NCCL library that nccl groups load"},
};

}  // namespace

std::span<const SettingInfo> all_settings() {
  return kSettings;
}

std::optional<std::string> setting(std::string_view name) {
  assert(std::any_of(std::begin(kSettings), std::end(kSettings),
                     [&](const SettingInfo& s) { return s.name == name; }));
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> setting_int(std::string_view name, int64_t low, int64_t high) {
  const auto text = setting(name);
  if (!text) {
    return std::nullopt;
  }
  int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [parsed, status] = std::from_chars(text->data(), end, value);
  if (status != std::errc() || parsed != end || value < low || value > high) {
    throw InvalidArgument(
        fmt::format("{} is \"{}\", expected a whole number from {} to {}", name, *text, low, high));
  }
  return value;
}

}  // namespace moebius
