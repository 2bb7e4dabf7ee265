// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/config_fields.h"
#include "checkpoint/json_text.h"
#include "core/printable.h"
#include "moebius/error.h"

namespace moebius::plan {

namespace {

// These bounds are far beyond any machine, and keep bytes and times of a plan finite.
constexpr double kMostRate = 1e6;  // GB, GB/s or TFLOP/s
constexpr double kMostTime = 1e9;  // us or ns

constexpr MachineFigure kFigures[] = {
    {"memory_gb", &Machine::memory_gb, 0.001, kMostRate},
    {"f32_tflops", &Machine::f32_tflops, 1e-6, kMostRate},
    {"bf16_tflops", &Machine::bf16_tflops, 1e-6, kMostRate},
    {"fp8_tflops", &Machine::fp8_tflops, 1e-6, kMostRate},
    {"int8_tflops", &Machine::int8_tflops, 1e-6, kMostRate},
    {"decoded_tflops", &Machine::decoded_tflops, 1e-6, kMostRate},
    {"registers_tflops", &Machine::registers_tflops, 1e-6, kMostRate},
    {"coded_tflops", &Machine::coded_tflops, 1e-6, kMostRate},
    {"row_tile", &Machine::row_tile, 1, 4096},
    {"weight_gb_per_s", &Machine::weight_gb_per_s, 1e-3, kMostRate},
    {"read_overlap", &Machine::read_overlap, 0, 1},
    {"copy_gb_per_s", &Machine::copy_gb_per_s, 1e-3, kMostRate},
    {"router_tflops", &Machine::router_tflops, 1e-6, kMostRate},
    {"router_us", &Machine::router_us, 0, kMostTime},
    {"router_depth_ns", &Machine::router_depth_ns, 0, kMostTime},
    {"experts_us", &Machine::experts_us, 0, kMostTime},
    {"link_gb_per_s", &Machine::link_gb_per_s, 0, kMostRate},
    {"link_us", &Machine::link_us, 0, kMostTime},
    {"peer_us", &Machine::peer_us, 0, kMostTime},
    {"ht_dispatch_us", &Machine::ht_dispatch_us, 0, kMostTime},
    {"ht_combine_us", &Machine::ht_combine_us, 0, kMostTime},
    {"ll_dispatch_us", &Machine::ll_dispatch_us, 0, kMostTime},
    {"ll_combine_us", &Machine::ll_combine_us, 0, kMostTime},
    {"exchange_us", &Machine::exchange_us, 0, kMostTime},
    {"node_gb_per_s", &Machine::node_gb_per_s, 1e-6, kMostRate},
    {"node_us", &Machine::node_us, 0, kMostTime},
};

constexpr const char* kPublic = "public measurement";  // 8 H200s, bulk copies and barriers alone

// Figures with the source "measured" are in docs/performance.md and the files beside it, or follow
// from figures there.  docs/plan.md explains the other sources.
Machine h200() {
  Machine m;
  m.name = "h200";
  m.description = "NVIDIA H200, NVSwitch within a node; a 400 Gb/s port per GPU between nodes";
  m.type = DeviceType::kCuda;
  m.experts_are_measured = true;
  m.memory_gb = {149, "driver"};  // 139 GiB
  m.f32_tflops = {30, "assumed"};
  // Means of the prefill cases of the grouped GEMM: 801, 776, 750, 660 and 1296, 1204, 1153, 930.
  m.bf16_tflops = {747, "measured"};
  m.fp8_tflops = {1146, "measured"};
  // Whole experts with 1024 rows each: in int8, and (coded_tflops) in int4 by mma_gemm.
  m.int8_tflops = {1161, "measured"};
  m.decoded_tflops = m.bf16_tflops;  // it is the same GEMM, and decoding is counted separately
  // For rows_in_registers() rows: the mean of mxfp4, nvfp4, fp8, int8 and int4 by 128 columns.
  m.registers_tflops = {1260, "measured"};
  m.coded_tflops = {90, "measured"};
  m.row_tile = {128, "kernel"};
  m.weight_gb_per_s = {3910, "measured"};  // decode cases of the GEMM: 4150, 3930, 3950, 3630
  m.read_overlap = {1, "assumed"};         // TMA loads weights while others are multiplied
  m.copy_gb_per_s = {4200, "measured"};
  m.router_tflops = {36.6, "measured"};   // logits of 4096 tokens: 15.0 GFLOP in 411 us
  m.router_us = {5, "measured"};          // selection of 1 to 128 tokens takes 4 to 5
  m.router_depth_ns = {3.3, "measured"};  // logits of 128 tokens take 24 us at hidden 7168
  m.experts_us = {30, "measured"};        // permutation 17.1, counts 8.5, a launch 4
  // An all-to-all by bulk copies among 8 GPUs on 12 to 24 SMs has 314 to 339 GB/s.
  m.link_gb_per_s = {330, kPublic};
  m.link_us = {1.5, kPublic};   // a barrier inside a kernel
  m.peer_us = {0.32, kPublic};  // barriers by kernels take 5.9 us with 8 ranks, 4.0 with 2
  m.ht_dispatch_us = {18,
                      "measured"};  // counts and notices 15 to 18, a launch 4, less link and peers
  m.ht_combine_us = {19.5,
                     "measured"};  // sums after the last row 14 to 22, a launch 4, less the same
  // One token among 4 GPUs takes 18.5 (fp8), 16.7 and 13.7 us, of which link and peers are
  // subtracted.
  m.ll_dispatch_us = {15, "measured"};
  m.ll_combine_us = {11.2, "measured"};
  m.exchange_us = {30, "assumed"};
  m.node_gb_per_s = {50, "assumed"};  // 400 Gb/s
  m.node_us = {10, "assumed"};
  return m;
}

Machine cpu() {
  Machine m;
  m.name = "cpu";
  m.description = "2 cores of an AMD EPYC (Zen 3, AVX2), rank threads";
  m.type = DeviceType::kCpu;
  m.is_shared_by_node = true;
  m.memory_gb = {24, "assumed"};
  // Experts reach this of the peak of 204 GFLOP/s: bench layer, Qwen3-30B-A3B, 2048 tokens.
  m.f32_tflops = {0.122, "measured"};
  m.bf16_tflops = {0.122, "measured"};
  m.fp8_tflops = {0.122, "assumed"};
  m.int8_tflops = {0.198, "measured"};
  m.decoded_tflops = {0.122, "assumed"};
  m.registers_tflops = {0.122, "assumed"};
  m.coded_tflops = {0.122, "assumed"};
  m.row_tile = {1, "assumed"};
  m.weight_gb_per_s = {31, "measured"};
  m.read_overlap = {0, "measured"};       // 64 tokens take the sum of both times
  m.copy_gb_per_s = {19, "measured"};     // memcpy in bench dispatch with 2 ranks, read and written
  m.router_tflops = {0.124, "measured"};  // logits and selection of 1024 tokens take 4.3 ms
  m.router_us = {5, "assumed"};
  m.router_depth_ns = {0, "assumed"};
  m.experts_us = {10, "assumed"};
  m.link_gb_per_s = {0, "assumed"};
  m.link_us = {0, "assumed"};
  m.peer_us = {1, "assumed"};
  m.ht_dispatch_us = {10, "assumed"};
  m.ht_combine_us = {10, "assumed"};
  m.ll_dispatch_us = {5, "assumed"};
  m.ll_combine_us = {5, "assumed"};
  m.exchange_us = {10, "assumed"};
  m.node_gb_per_s = {1, "assumed"};
  m.node_us = {50, "assumed"};
  return m;
}

constexpr Machine (*kMachines[])() = {h200, cpu};

}  // namespace

std::span<const MachineFigure> machine_figures() {
  return kFigures;
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& make : kMachines) {
    names.push_back(make().name);
  }
  return names;
}

Machine find_machine(const std::string& name) {
  for (const auto& make : kMachines) {
    if (Machine machine = make(); machine.name == name) {
      return machine;
    }
  }
  throw InvalidArgument(fmt::format("machine is {}, expected {}, here or a JSON file", name,
                                    fmt::join(machine_names(), ", ")));
}

void expect_valid(const Machine& machine) {
  for (const MachineFigure& f : kFigures) {
    const double value = (machine.*f.figure).value;
    const bool is_low = !(value >= f.least);  // NaN, too
    if (is_low || value > f.most) {
      throw InvalidArgument(fmt::format("machine {}: {} is {}, expected at {} {}", machine.name,
                                        f.key, value, is_low ? "least" : "most",
                                        is_low ? f.least : f.most));
    }
  }
  if (machine.type == DeviceType::kCuda && machine.link_gb_per_s.value == 0) {
    throw InvalidArgument(fmt::format(
        "machine {}: link_gb_per_s is 0, but GPUs have a link between them", machine.name));
  }
}

Machine read_machine(const std::string& file) {
  const nlohmann::json content = checkpoint::read_json_object(file);
  const checkpoint::ConfigFields fields(content, file);
  Machine machine = find_machine(fields.string("base"));
  machine.name = file;
  machine.description = fields.string_or("description", machine.description);
  for (const std::string& key : fields.keys()) {
    if (!fields.has(key)) {
      throw InvalidArgument(fmt::format("{}: {} is null, expected a value", file, printable(key)));
    }
    const auto* known = std::find_if(std::begin(kFigures), std::end(kFigures),
                                     [&](const MachineFigure& f) { return f.key == key; });
    if (known != std::end(kFigures)) {
      machine.*known->figure = {fields.number_or(key, 0), "file"};
    } else if (key != "base" && key != "description") {
      throw InvalidArgument(fmt::format("{}: {} is no figure of a machine", file, printable(key)));
    }
  }
  expect_valid(machine);
  return machine;
}

}  // namespace moebius::plan
