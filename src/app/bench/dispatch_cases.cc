// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The cases of dispatch and combine: the rows that every rank receives or gives back are checked
// one by one, and at real sizes their rate is compared with that of memcpy.
//
// Ranks are threads of the threads group.  They start together, and a call ends when the last of
// them has finished.  After each call the same threads copy as many bytes as they have just
// received, with one memcpy each between buffers of their own.  Both rates are so measured at the
// same time.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "app/bench/cases.h"
#include "app/bench/per_rank.h"
#include "app/bench/rank_team.h"
#include "core/parallel.h"
#include "moebius/dispatch.h"
#include "moebius/low_latency.h"
#include "problems/dispatch_oracle.h"
#include "problems/statistics.h"

namespace moebius::bench {

namespace {

using app::Value;

struct RankSetup {
  Group& group;
  const DispatchProblem& problem;
  std::vector<RankRows>& all;  // what each rank brings
  const Stream& stream;
};

// One rank's part of a case.
class RankCase {
 public:
  explicit RankCase(const RankSetup& setup)
      : problem_(setup.problem),
        all_(setup.all),
        rank_(setup.group.rank()),
        stream_(setup.stream) {}
  virtual ~RankCase() = default;

  virtual void prepare() {}  // called before each call, not timed
  virtual void run() = 0;
  virtual Difference difference() const = 0;
  virtual int64_t moved_bytes() const = 0;  // rows that this rank received in the last call

  // Makes the buffers of copy() and touches their pages.
  void prepare_copy() {
    const int64_t bytes = moved_bytes();
    if (!from_ || from_.nbytes() < bytes) {
      from_ = Tensor::zeros({bytes + bytes / 8}, DType::kU8);
      to_ = Tensor::zeros(from_.shape(), DType::kU8);
      std::memset(from_.raw(), 0x55, static_cast<size_t>(from_.nbytes()));
    }
  }
  // Copies moved_bytes() with one memcpy per thread.
  void copy() const {
    const int64_t bytes = moved_bytes();
    const int64_t part = (bytes + stream_.num_threads() - 1) / stream_.num_threads();
    parallel_for(stream_, bytes, std::max<int64_t>(part, 1), [&](int64_t begin, int64_t end) {
      std::memcpy(to_.bytes() + begin, from_.bytes() + begin, static_cast<size_t>(end - begin));
    });
  }

 protected:
  RankRows& own() const { return all_[static_cast<size_t>(rank_)]; }
  void draw_again() {
    draw_routing(problem_, ++num_drawn_ * 1000 + static_cast<uint64_t>(rank_), own());
  }

  const DispatchProblem& problem_;
  std::vector<RankRows>& all_;
  int rank_;
  Stream stream_;

 private:
  uint64_t num_drawn_ = 0;
  Tensor from_;
  Tensor to_;
};

int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    bytes += tensor.nbytes();
  }
  return bytes;
}

class HighThroughputDispatch : public RankCase {
 public:
  explicit HighThroughputDispatch(const RankSetup& setup)
      : RankCase(setup),
        transport_(setup.group,
                   problem_.placement(),
                   DispatchConfig::for_dispatch(problem_.num_ranks),
                   DispatchConfig::for_combine(problem_.num_ranks)) {}

  void prepare() override {
    output_ = {};  // gives its memory to the next one
    draw_again();
  }
  void run() override { output_ = dispatch(); }
  Difference difference() const override {
    return dispatch_difference(problem_, all_, rank_,
                               received_rows(output_, output_.payloads[0].dim(0), stream_));
  }
  int64_t moved_bytes() const override { return bytes_of(output_.payloads); }

 protected:
  DispatchOutput dispatch() {
    return transport_.dispatch({own().payloads, own().topk_ids, own().topk_weights, 1, {}},
                               stream_);
  }

  HighThroughput transport_;
  DispatchOutput output_;
};

class HighThroughputCached final : public HighThroughputDispatch {
 public:
  using HighThroughputDispatch::HighThroughputDispatch;

  void prepare() override {
    if (!handle_) {
      handle_ = dispatch().handle;
    }
    output_ = {};
  }
  void run() override { output_ = transport_.dispatch_cached({own().payloads}, *handle_, stream_); }

 private:
  std::shared_ptr<const DispatchHandle> handle_;
};

class HighThroughputCombine final : public HighThroughputDispatch {
 public:
  using HighThroughputDispatch::HighThroughputDispatch;

  void prepare() override {
    if (!handle_) {
      const DispatchOutput received = dispatch();
      handle_ = received.handle;
      input_.x = rank_contribution(received.payloads[0], rank_, stream_);
      combined_ = Tensor::zeros(own().payloads[0].shape(), DType::kBF16);
    }
  }
  void run() override { transport_.combine(input_, *handle_, stream_, combined_); }
  Difference difference() const override { return combine_difference(problem_, own(), combined_); }
  int64_t moved_bytes() const override { return input_.x.nbytes(); }

 private:
  std::shared_ptr<const DispatchHandle> handle_;
  CombineInput input_;
  Tensor combined_;
};

template <LowLatencyCast kCast, LowLatencySum kSum = LowLatencySum::kSelections>
class LowLatencyDispatch : public RankCase {
 public:
  explicit LowLatencyDispatch(const RankSetup& setup)
      : RankCase(setup),
        transport_(setup.group,
                   problem_.placement(),
                   {problem_.tokens, problem_.hidden, problem_.topk, DType::kBF16, 0, kSum}) {}

  void prepare() override {
    output_ = {};
    draw_again();
  }
  void run() override {
    output_ = transport_.dispatch({own().payloads[0], own().topk_ids, kCast}, stream_);
  }
  Difference difference() const override {
    return dispatch_difference(problem_, all_, rank_, kCast, output_);
  }
  int64_t moved_bytes() const override { return num_rows() * row_bytes(); }

 protected:
  int64_t num_rows() const {
    const auto* counts = output_.expert_num_tokens.data<int32_t>();
    return std::accumulate(counts, counts + output_.expert_num_tokens.numel(), int64_t{0});
  }
  int64_t row_bytes() const {
    return kCast == LowLatencyCast::kNone ? 2 * problem_.hidden
                                          : problem_.hidden + 4 * output_.x_scale.dim(2);
  }

  LowLatency transport_;
  LowLatencyDispatchOutput output_;
};

template <LowLatencySum kSum>
class LowLatencyCombine final : public LowLatencyDispatch<LowLatencyCast::kNone, kSum> {
  using Base = LowLatencyDispatch<LowLatencyCast::kNone, kSum>;
  using Base::output_, Base::own, Base::problem_, Base::rank_, Base::stream_, Base::transport_;

 public:
  using Base::Base;

  void prepare() override {
    output_ = {};
    Base::run();  // each dispatch is combined once, and gives equal rows
    if (!x_) {
      x_ = expert_contribution(problem_, rank_, output_);
      combined_ = Tensor::zeros(own().payloads[0].shape(), DType::kBF16);
    }
  }
  void run() override {
    transport_.combine({x_, own().topk_ids, own().topk_weights}, *output_.handle, stream_,
                       combined_);
  }
  Difference difference() const override {
    return low_latency_combine_difference(problem_, own(), kSum, combined_);
  }

 private:
  Tensor x_;
  Tensor combined_;
};

struct CaseKind {
  std::string_view impl;
  std::string_view name;
  RowFormat format;
  std::unique_ptr<RankCase> (*make)(const RankSetup& setup);
};

template <typename Kind>
std::unique_ptr<RankCase> make(const RankSetup& setup) {
  return std::make_unique<Kind>(setup);
}

constexpr CaseKind kHighThroughput[] = {
    {"high_throughput", "dispatch_bf16", RowFormat::kBF16, make<HighThroughputDispatch>},
    {"high_throughput", "dispatch_fp8", RowFormat::kFp8, make<HighThroughputDispatch>},
    {"high_throughput", "dispatch_cached", RowFormat::kBF16, make<HighThroughputCached>},
    {"high_throughput", "combine", RowFormat::kBF16, make<HighThroughputCombine>},
};
constexpr CaseKind kLowLatency[] = {
    {"low_latency", "dispatch_bf16", RowFormat::kBF16,
     make<LowLatencyDispatch<LowLatencyCast::kNone>>},
    {"low_latency", "dispatch_fp8", RowFormat::kBF16,
     make<LowLatencyDispatch<LowLatencyCast::kFp8>>},
    {"low_latency", "combine", RowFormat::kBF16,
     make<LowLatencyCombine<LowLatencySum::kSelections>>},
    {"low_latency", "combine_ranks", RowFormat::kBF16,
     make<LowLatencyCombine<LowLatencySum::kRanks>>},
};

// The rank threads, each with its part of the case.
class DispatchRun {
 public:
  DispatchRun(const DispatchProblem& problem, const CaseKind& kind, int num_threads)
      : stream_(Stream::cpu(std::max(1, num_threads / problem.num_ranks))),
        all_(static_cast<size_t>(problem.num_ranks)),
        team_({.num_ranks = problem.num_ranks}),
        ranks_(team_, [&](Group& group) {
          all_[static_cast<size_t>(group.rank())] = make_rows(problem, kind.format, group.rank());
          return kind.make({group, problem, all_, stream_});
        }) {}

  double call() {
    ranks_.run([](RankCase& rank, Group&) { rank.prepare(); });
    return ranks_.run([](RankCase& rank, Group&) { rank.run(); });
  }
  // Makes a call, then times memcpy once.
  double timed_call() {
    const double seconds = call();
    ranks_.run([](RankCase& rank, Group&) { rank.prepare_copy(); });
    memcpy_samples_.push_back(ranks_.run([](RankCase& rank, Group&) { rank.copy(); }));
    return seconds;
  }
  Difference difference() {
    return ranks_.difference([](const RankCase& rank) { return rank.difference(); });
  }
  int64_t moved_bytes() const {
    int64_t bytes = 0;
    for (const auto& rank : ranks_.all()) {
      bytes += rank->moved_bytes();
    }
    return bytes;
  }
  double median_memcpy_seconds() const { return app::median(memcpy_samples_); }

 private:
  Stream stream_;
  std::vector<RankRows> all_;
  RankTeam team_;
  PerRank<RankCase> ranks_;
  std::vector<double> memcpy_samples_;
};

void run_case(const DispatchProblem& problem, const CaseKind& kind, const CaseSetup& setup) {
  Case c;
  c.problem = fmt::format("{}/{}", problem.name, kind.name);
  c.impl = kind.impl;
  if (!setup.wants(c.problem, c.impl)) {
    return;
  }
  DispatchRun run(problem, kind, setup.stream.num_threads());
  c.call = [&] { run.call(); };
  c.timed_call = [&] { return run.timed_call(); };
  c.difference = [&] { return run.difference(); };
  c.metrics = [&](double seconds) {
    const double gigabytes = static_cast<double>(run.moved_bytes()) * 1e-9;
    const double memcpy_seconds = run.median_memcpy_seconds();
    return std::vector<Value>{
        gigabytes / seconds, memcpy_seconds / seconds, gigabytes / memcpy_seconds,
        problem.num_ranks,   problem.tokens,           run.moved_bytes()};
  };
  setup.visit(c);
}

}  // namespace

void run_dispatch_cases(const CaseSetup& setup) {
  const std::vector<int> rank_counts = setup.ranks > 0  ? std::vector{setup.ranks}
                                       : setup.is_small ? std::vector{1, 2, 3}
                                                        : std::vector{1, 2, 4, 8};
  for (const int ranks : rank_counts) {
    DispatchProblem prefill{fmt::format("dsv3_prefill_r{}", ranks), ranks, 0, 7168, 256, 8};
    // Why so many: all ranks together receive about 1 GB.
    prefill.tokens = ranks == 2 || ranks == 4 ? 4096 : 512;
    DispatchProblem decode{fmt::format("dsv3_decode_r{}", ranks), ranks, 128, 7168, 256, 8};
    if (setup.is_small) {
      prefill = {fmt::format("r{}", ranks), ranks, 33, 256, 16, 4};
      decode = prefill;
    }
    for (const CaseKind& kind : kHighThroughput) {
      run_case(prefill, kind, setup);
    }
    for (const CaseKind& kind : kLowLatency) {
      run_case(decode, kind, setup);
    }
  }
}

}  // namespace moebius::bench
