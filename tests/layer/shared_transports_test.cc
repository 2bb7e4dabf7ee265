// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Many layers on one transport: the memory of 64 is that of one, and so are the bits.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <vector>

#include "moebius/modular_kernel.h"
#include "tests/error_text.h"
#include "tests/layer/backends.h"
#include "tests/layer/fakes.h"
#include "tests/layer/small_layer.h"

namespace moebius::testing {
namespace {

constexpr int kRanks = 2;
constexpr int kLayers = 64;

// The value of a line of /proc/self/status, in bytes.
int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(name + ":", 0) == 0) {
      return std::stoll(line.substr(name.size() + 1)) * 1024;
    }
  }
  throw Error("no line " + name + " in /proc/self/status");
}

// How much more memory the process takes at its peak while `work` runs in a process of its own.
int64_t peak_bytes_of(const std::function<void()>& work) {
  int ends[2];
  if (pipe(ends) != 0) {
    throw Error("pipe");
  }
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int64_t grown = -1;
    try {
      std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
      const int64_t before = status_bytes("VmRSS");
      work();
      grown = status_bytes("VmHWM") - before;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    const bool told = write(ends[1], &grown, sizeof(grown)) == sizeof(grown);
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  int64_t grown = -1;
  const bool is_told = read(ends[0], &grown, sizeof(grown)) == sizeof(grown);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!is_told || grown < 0 || status != 0) {
    throw Error("the process that runs the layers has failed");
  }
  return grown;
}

struct Problem {
  int64_t tokens;
  int64_t hidden;
  int64_t calls;
};

// Makes `num_layers` kernels on one transport, and calls all of them in turn.  The experts are fake
// and have no weights.
void run_layers(Group& group, All2AllBackend backend, int num_layers, const Problem& problem) {
  const auto& [num_tokens, hidden, num_calls] = problem;
  Transports transports(group);
  ExpertsDesc desc = fake_desc(group.size(), 1, hidden, format_of(backend));
  desc.num_local_experts = 1;
  std::vector<std::unique_ptr<ModularKernel>> layers;
  for (int i = 0; i < num_layers; ++i) {
    layers.push_back(std::make_unique<ModularKernel>(
        make_backend(backend, transports, group.size(), num_tokens, hidden),
        std::make_unique<FakeExperts>(desc)));
  }
  const auto next = static_cast<int32_t>((group.rank() + 1) % group.size());
  const KernelInput input{
      .hidden = random_tensor({num_tokens, hidden}, DType::kF32, group.rank()),
      .topk_ids =
          ids_of({num_tokens, 1}, std::vector<int32_t>(static_cast<size_t>(num_tokens), next)),
      .topk_weights = random_tensor({num_tokens, 1}, DType::kF32, 9),
      .num_experts = group.size()};
  WorkspacePool workspaces;
  const Tensor output = Tensor::empty(input.hidden.shape(), DType::kF32);
  int64_t bytes = 0;
  for (int64_t call = 0; call < num_calls; ++call) {
    for (const auto& layer : layers) {
      layer->forward(input, output, {}, {Stream::cpu(1), &workspaces});
    }
    bytes = call == 1 ? transports.bytes() : bytes;  // low latency has made both results by then
    if (call > 1) {
      expect_eq(transports.bytes(), bytes, "bytes of the transports");
    }
  }
}

class SharedTransport : public ::testing::TestWithParam<All2AllBackend> {};

TEST_P(SharedTransport, SixtyFourLayersTakeTheMemoryOfOne) {
  const auto peak = [&](int num_layers) {
    return peak_bytes_of([&] {
      run_thread_ranks({.num_ranks = kRanks, .pin = false}, [&](Group& group) {
        run_layers(group, GetParam(), num_layers, {.tokens = 256, .hidden = 1024, .calls = 3});
      });
    });
  };
  const int64_t one = peak(1);
  const int64_t many = peak(kLayers);
  std::printf("%s: %.1f MB with one layer, %.1f MB with %d\n",
              std::string(name(GetParam())).c_str(), static_cast<double>(one) * 1e-6,
              static_cast<double>(many) * 1e-6, kLayers);
  EXPECT_GT(one, int64_t{kRanks} * 256 * 1024 * 4);  // at least the rows of a receive bank
  EXPECT_LE(static_cast<double>(many), 1.1 * static_cast<double>(one));
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         SharedTransport,
                         ::testing::Values(All2AllBackend::kHighThroughput,
                                           All2AllBackend::kLowLatency));

ParallelConfig parallel_of(const Group& group, All2AllBackend backend) {
  return ParallelConfig::make(1, 0, group.size(), group.rank(), /*enable_expert_parallel=*/true,
                              backend);
}

TEST(SharedTransports, LayersTakeTheirTransportFromThem) {
  for (const All2AllBackend backend : kBackends) {
    run_thread_ranks({.num_ranks = kRanks, .pin = false}, [&](Group& group) {
      const Stream stream = Stream::cpu(1);
      MoeLayerOptions options = SmallLayer::options();
      const auto make = [&] {
        return MoeLayer(SmallLayer::shard(parallel_of(group, backend)), options, stream, &group);
      };
      const Tensor hidden = random_tensor({7, SmallLayer::kHidden}, DType::kF32, 3 + group.rank());
      MoeLayer alone = make();
      const Tensor expected = forward(alone, hidden, DType::kF32, stream);
      options.transports = std::make_shared<Transports>(group);
      MoeLayer first = make();
      MoeLayer second = make();
      int64_t bytes = 0;
      for (int call = 0; call < 3; ++call) {
        for (MoeLayer* layer : {&first, &second}) {
          expect_same_bits(forward(*layer, hidden, DType::kF32, stream), expected);
        }
        bytes = call == 0 ? options.transports->bytes() : bytes;
        EXPECT_EQ(options.transports->bytes(), bytes);
      }
      EXPECT_EQ(bytes > 0, backend != All2AllBackend::kAllGatherReduceScatter);
      if (backend != All2AllBackend::kAllGatherReduceScatter) {
        EXPECT_EQ(first.kernel().prepare_finalize().statistics()->selections,
                  6 * 7 * SmallLayer::kTopk);  // of the transport, whichever layer is asked
      }
    });
  }
}

TEST(SharedTransports, OfAnotherGroupAreRefused) {
  run_thread_ranks({.num_ranks = kRanks, .pin = false}, [&](Group& group) {
    const std::unique_ptr<Group> other = group.split(0);
    MoeLayerOptions options = SmallLayer::options();
    options.transports = std::make_shared<Transports>(*other);
    expect_error(
        {"transports are of another group (threads, 2 ranks)", "the layer's (threads, 2 ranks)"},
        [&] {
          MoeLayer(SmallLayer::shard(parallel_of(group, All2AllBackend::kHighThroughput)), options,
                   Stream::cpu(1), &group);
        });
    group.barrier("both have refused");
  });
}

}  // namespace
}  // namespace moebius::testing
