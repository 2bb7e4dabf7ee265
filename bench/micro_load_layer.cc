// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Loads a layer of about 1.2 GB in each stored format, from files that the page cache holds.
// Counters: `plain_ms` is a plain read of the same file by as many threads into new memory, `ratio`
// the load's time over it, and `cpu_ratio` the same of processor time, which says more where other
// programs run.  `peak` is the growth of the resident memory, with the mapped pages of the file,
// over the bytes of the loaded layer.
// $TMPDIR needs 1.3 GB.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/make_model.h"
#include "checkpoint/safetensors_writer.h"
#include "core/parallel.h"
#include "moebius/checkpoint.h"

namespace {

using namespace moebius;
using nlohmann::json;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// The processor time of all threads.
double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The time that something takes, and the least of several.
struct Times {
  double wall = 1e9;
  double cpu = 1e9;

  void take_least(const Times& other) {
    wall = std::min(wall, other.wall);
    cpu = std::min(cpu, other.cpu);
  }
};

class Watch {
 public:
  Times elapsed() const {
    return {std::chrono::duration<double>(Clock::now() - start_).count(), cpu_seconds() - cpu_};
  }

 private:
  Clock::time_point start_ = Clock::now();
  double cpu_ = cpu_seconds();
};

json packed_int(int bits, bool is_symmetric) {
  return {{"num_bits", bits},
          {"type", "int"},
          {"strategy", "group"},
          {"group_size", 128},
          {"symmetric", is_symmetric}};
}

json compressed(const char* format, json weights, json acts = nullptr) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", acts}}}}}};
}

struct Format {
  const char* name;
  int bits;  // of a weight
  json quantization;
  const char* family = "qwen3_moe";
  void (*write)(const json& config, const fs::path& folder) = nullptr;  // null: write_model()
};

// Writes experts in e4m3 [E, K, N], as Llama 4 has them in fp8.  All values are 0.
void write_transposed_fp8(const json& config, const fs::path& folder) {
  const auto experts = config.at("num_local_experts").get<int64_t>();
  const auto hidden = config.at("hidden_size").get<int64_t>();
  const auto size = config.at("intermediate_size").get<int64_t>();
  const std::string block = "model.layers.0.feed_forward.";
  fs::create_directories(folder);
  checkpoint::SafetensorsWriter file(
      folder / "model.safetensors",
      {{block + "router.weight", DType::kBF16, {experts, hidden}},
       {block + "experts.gate_up_proj", DType::kF8E4M3, {experts, hidden, 2 * size}},
       {block + "experts.gate_up_proj_scale", DType::kF32, {experts, 2 * size, 1}},
       {block + "experts.down_proj", DType::kF8E4M3, {experts, size, hidden}},
       {block + "experts.down_proj_scale", DType::kF32, {experts, hidden, 1}},
       {block + "shared_expert.gate_proj.weight", DType::kBF16, {size, hidden}},
       {block + "shared_expert.up_proj.weight", DType::kBF16, {size, hidden}},
       {block + "shared_expert.down_proj.weight", DType::kBF16, {hidden, size}}},
      {{"format", "pt"}});
  for (const checkpoint::StoredTensor& tensor : file.specs()) {
    file.write(std::vector<std::byte>(static_cast<size_t>(tensor.nbytes())));
  }
  file.commit();
  std::ofstream(folder / "config.json") << config;
}

std::vector<Format> formats() {
  const json token = {{"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"dynamic", true}};
  const json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"sym", true}};
  json gptq_zeros = gptq;
  gptq_zeros["sym"] = false;
  json gptq8 = gptq;
  gptq8["bits"] = 8;
  return {
      {"none", 16, nullptr},
      {"transposed", 16, nullptr, "llama4_text"},
      {"transposed_fp8", 8, {{"quant_method", "fbgemm_fp8"}}, "llama4_text", write_transposed_fp8},
      {"ct_fp8_channel", 8,
       compressed("float-quantized", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}},
                  token)},
      {"ct_int8", 8,
       compressed("int-quantized", {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}})},
      {"ct_int4", 4, compressed("pack-quantized", packed_int(4, true))},
      {"ct_int4_zeros", 4, compressed("pack-quantized", packed_int(4, false))},
      {"ct_packed_int8", 8, compressed("pack-quantized", packed_int(8, true))},
      {"gptq", 4, gptq},
      {"gptq_zeros", 4, gptq_zeros},
      {"gptq_int8", 8, gptq8},
      {"awq", 4, {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}}},
      {"fp8_block", 8, {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}},
      {"gpt_oss", 4, {{"quant_method", "mxfp4"}}, "gpt_oss"},
      {"ct_mxfp4", 4,
       compressed("mxfp4-pack-quantized",
                  {{"num_bits", 4}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}})},
      {"ct_nvfp4", 4,
       compressed(
           "nvfp4-pack-quantized",
           {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}})},
      {"modelopt_nvfp4", 4, {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}},
      {"modelopt_fp8", 8, {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}},
      {"mxfp8", 8, {{"quant_method", "mxfp8"}}},
  };
}

// A folder with one layer; it is removed at the end.
class Folder {
 public:
  explicit Folder(const Format& format)
      : path_(fs::temp_directory_path() / ("micro_load_layer." + std::to_string(::getpid()))) {
    json config = {{"model_type", format.family},
                   {"hidden_size", 4096},
                   {"num_experts_per_tok", 8},
                   {"num_hidden_layers", 1},
                   {"dtype", "bfloat16"}};
    // Families spell these in two ways.
    config["intermediate_size"] = config["moe_intermediate_size"] = 1536;
    config["num_local_experts"] = config["num_experts"] = 512 / format.bits;
    if (!format.quantization.is_null()) {
      config["quantization_config"] = format.quantization;
    }
    if (format.write != nullptr) {
      format.write(config, path_);
    } else {
      checkpoint::write_model(config, format.name, 1, path_, int64_t{1} << 40);
    }
  }
  ~Folder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  const fs::path& path() const { return path_; }
  fs::path file() const { return path_ / "model.safetensors"; }

 private:
  fs::path path_;
};

// Reads the file once with all threads into new memory.
Times plain_read(const fs::path& file) {
  const auto size = static_cast<int64_t>(fs::file_size(file));
  const int fd = ::open(file.c_str(), O_RDONLY);
  const Watch watch;
  void* memory = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  constexpr int64_t kPart = 8 << 20;
  parallel_tasks(Stream::cpu(), (size + kPart - 1) / kPart, [&](int64_t i, int) {
    const int64_t begin = i * kPart;
    const int64_t end = std::min(size, begin + kPart);
    for (int64_t at = begin; at < end;) {
      const ssize_t n =
          ::pread(fd, static_cast<char*>(memory) + at, static_cast<size_t>(end - at), at);
      if (n <= 0) {
        std::abort();
      }
      at += n;
    }
  });
  const Times times = watch.elapsed();
  ::munmap(memory, static_cast<size_t>(size));
  ::close(fd);
  return times;
}

int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) {
      return std::stoll(line.substr(field.size() + 1)) * 1024;
    }
  }
  return 0;
}

int64_t bytes_of(const ExpertWeights& experts) {
  int64_t bytes = experts.w1.nbytes() + experts.w2.nbytes();
  for (const QuantDesc* desc : {&experts.quant.w1, &experts.quant.w2}) {
    for (const Tensor* tensor : {&desc->scale, &desc->zero_point}) {
      bytes += *tensor ? tensor->nbytes() : 0;
    }
  }
  return bytes;
}

void load(benchmark::State& state, const Format& format) {
  const Folder folder(format);
  Times plain = plain_read(folder.file());  // fills the page cache
  const Checkpoint checkpoint(folder.path());
  // Starts the threads.  Why a whole layer: the host of a virtual machine may have to find memory
  // for pages that were never touched, which takes seconds.
  checkpoint.load_layer(0);
  Times best;
  int64_t peak = 0;
  int64_t bytes = 0;
  for (auto _ : state) {
    plain.take_least(plain_read(folder.file()));
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
    const int64_t before = status_bytes("VmRSS");
    const Watch watch;
    const MoeLayerWeights weights = checkpoint.load_layer(0);
    const Times times = watch.elapsed();
    peak = std::max(peak, status_bytes("VmHWM") - before);
    bytes = bytes_of(weights.experts);
    best.take_least(times);
    state.SetIterationTime(times.wall);
  }
  state.counters["plain_ms"] = plain.wall * 1e3;
  state.counters["ratio"] = best.wall / plain.wall;
  state.counters["cpu_ratio"] = best.cpu / plain.cpu;
  state.counters["MB"] = static_cast<double>(bytes) / 1e6;
  state.counters["peak"] = static_cast<double>(peak) / static_cast<double>(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const Format& format : formats()) {
    benchmark::RegisterBenchmark((std::string("load_layer/") + format.name).c_str(),
                                 [format](benchmark::State& state) { load(state, format); })
        ->Iterations(5)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
