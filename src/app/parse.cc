// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The command line of every subcommand.  Longer than 500 lines: each option is one statement, and
// all of them are read in one place beside docs/command.md.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "app/build_info.h"
#include "app/options.h"
#include "moebius/error.h"

namespace moebius::app {

namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr uint64_t kMaxSeed = std::numeric_limits<uint64_t>::max();

CLI::Validator from_one_to(int64_t last) {
  return CLI::Range(int64_t{1}, last);
}

// CLI11 reads 010 as 8, and -1 as the largest number there is.
std::string whole_number_error(const std::string& text, bool is_signed) {
  const size_t digits = is_signed && text.starts_with('-') ? 1 : 0;
  const bool is_plain = text.size() > digits &&
                        text.find_first_not_of("0123456789", digits) == std::string::npos &&
                        (text[digits] != '0' || text.size() == digits + 1);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + digits, text.data() + text.size(), value);
  if (!is_plain) {
    return fmt::format("{} is no whole number", text);
  }
  return error == std::errc() ? "" : fmt::format("{} is above {}", text, kMaxSeed);
}

std::string finite_error(const std::string& text) {
  double value = 0;
  const bool is_number = CLI::detail::lexical_cast(text, value);
  return is_number && std::isfinite(value) ? "" : fmt::format("{} is no finite number", text);
}

// A value that begins with "--" is the next option, after a variable of the shell that was not set.
std::string next_option_error(const std::string& text, const std::string& type) {
  const bool is_folder = type.starts_with("DIR");
  const std::string hint =
      is_folder || type.starts_with("FILE")
          ? fmt::format(" (a {} of that name: ./{})", is_folder ? "folder" : "file", text)
          : "";
  return fmt::format("is followed by {}, expected {}{}", text,
                     type.starts_with("TEXT") ? "a value" : type, hint);
}

// Of values with commas between them.
bool is_list(const CLI::Option& option) {
  return option.get_delimiter() != '\0';
}

bool has_empty_element(std::string_view list, char delimiter) {
  return list.starts_with(delimiter) || list.ends_with(delimiter) ||
         list.find(std::string(2, delimiter)) != std::string_view::npos;
}

// Of every option that takes one, before what the option itself checks.  An empty one is a variable
// of the shell that was not set.
void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0) {
      continue;
    }
    if (is_list(*option)) {
      option->allow_extra_args(false);  // what follows the list is not of it
    }
    const std::string type = option->get_type_name();
    const auto check = [type](const std::string& text) -> std::string {
      if (text.empty()) {
        return "is empty";
      }
      if (type.starts_with("INT") || type.starts_with("UINT")) {
        return whole_number_error(text, type.starts_with("INT"));
      }
      if (type.starts_with("FLOAT")) {
        return finite_error(text);
      }
      return text.starts_with("--") ? next_option_error(text, type) : "";
    };
    option->transform(CLI::Validator(check, ""));  // check() would put it last
  }
  for (CLI::App* group : app.get_subcommands({})) {
    check_values(*group);
  }
}

void add_sum(CLI::App& app, std::string& sum) {
  app.add_option("--sum", sum,
                 "what low_latency's combine sends back: a row per selection (default), or sums "
                 "per rank")
      ->check(CLI::IsMember(BenchOptions::kSums));
}

void add_router_sums(CLI::App& app, std::string& router_sums) {
  app.add_option("--router-sums", router_sums,
                 "GPUs: how router logits are summed: stated, the same bits everywhere (default), "
                 "or tensor, by tensor cores, faster")
      ->check(CLI::IsMember({"stated", "tensor"}));
}

void add_layer_options(CLI::App& app, RunOptions& o) {
  app.add_option("--model", o.model, "Hugging Face model folder")->required()->type_name("DIR");
  app.add_option("--layer", o.layer, "layer index (default: the first MoE layer)")
      ->check(CLI::Range(int64_t{0}, int64_t{kMaxInt}));
  CLI::Option* input = app.add_option("--input", o.input, "hidden states [T, H]: bf16, f16 or f32");
  input->type_name("FILE.safetensors");
  app.add_option("--input-tensor", o.input_tensor, "its name (default: the only one of the file)")
      ->needs(input)
      ->type_name("NAME");
  app.add_option("--tokens", o.tokens, "synthetic input of this many tokens (default 64)")
      ->check(from_one_to(kMaxTokens))
      ->excludes(input);
  app.add_option("--seed", o.seed, "seed of the synthetic input (default 0)")->excludes(input);
  app.add_option("--output", o.output, "where to write tensor \"output\" [T, H] f32")
      ->type_name("FILE.safetensors");
  app.add_option("--quant", o.quant,
                 "auto: as the checkpoint says; none: activations not quantized; or a scheme to "
                 "quantize an unquantized checkpoint with (fp8_w8a8, int4_w4a16, ...)");
  app.add_option("--format", o.format, "how rows reach the experts")
      ->check(CLI::IsMember({"standard", "batched"}));
  app.add_option("--experts", o.experts, "experts implementation to force (see moebius info)")
      ->type_name("NAME");
  app.add_option("--chunk-tokens", o.kernel.chunk_tokens,
                 "rows per pass through a rank's experts: on one rank tokens; not of batched rows")
      ->check(from_one_to(kMaxTokens));
}

void add_parallel_options(CLI::App& app, RunOptions& o) {
  app.add_option("--device", o.device, "where ranks compute")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--group", o.group, "what a rank is")
      ->check(CLI::IsMember({"threads", "mpi", "nccl"}));
  app.add_option("--ranks", o.ranks, "number of ranks")->check(from_one_to(kMaxInt));
  app.add_option("--ranks-per-node", o.ranks_per_node, "pretend that nodes are this small")
      ->check(from_one_to(kMaxInt));
  app.add_option("--tp", o.tp, "tensor parallel size")->check(from_one_to(kMaxInt));
  app.add_option("--dp", o.dp, "data parallel size")->check(from_one_to(kMaxInt));
  app.add_flag("--no-ep", o.no_ep, "shard every expert instead of distributing experts");
  app.add_option("--all2all", o.all2all, "transport between ranks")
      ->check(CLI::IsMember({"none", "allgather_reducescatter", "high_throughput", "low_latency"}));
  app.add_flag("--monolithic", o.monolithic, "router logits travel, the experts route");
  add_router_sums(app, o.router_sums);
  add_sum(app, o.sum);
  app.add_option("--microbatches", o.kernel.microbatches,
                 "parts of a call that overlap (default 1)")
      ->check(from_one_to(64));
  app.add_option("--comm-sms", o.comm_sms,
                 "GPUs: SMs of each transport kernel, even (default: as the backend computes)")
      ->check(from_one_to(1024));
  app.add_option("--combine-parts", o.kernel.combine_parts,
                 "GPUs: parts by columns in which high_throughput sends results back (default: as "
                 "computed)")
      ->check(from_one_to(64));
  app.add_option("--early-rows", o.kernel.early_rows,
                 "GPUs: rows of a rank from which experts begin before all are there, 0: never "
                 "(default: as computed)")
      ->check(CLI::Range(int64_t{0}, kMaxTokens));
  app.add_option(
         "--capacity", o.capacity,
         "high_throughput on GPUs: rows that a rank has room for, so that no host waits for "
         "their number (0, the default with --graph: for the tokens of all ranks)")
      ->check(CLI::Range(int64_t{0}, kMaxTokens));
}

void add_report_options(CLI::App& app, RunOptions& o) {
  app.add_option("--threads", o.threads, "CPU threads (default: all usable)")
      ->check(from_one_to(4096));
  app.add_option("--repeat", o.repeat, "timed calls after one warm-up (default 3)")
      ->check(from_one_to(1000000));
  app.add_flag("--graph", o.graph, "with --device cuda: record a call once, time its replays");
  app.add_flag("--check", o.check, "compare with the float64 reference; exit 1 above tolerance");
  app.add_option("--json", o.json, "write every printed figure")->type_name("FILE");
  app.add_option("--trace", o.trace, "write a timeline for Perfetto")->type_name("FILE");
  app.add_option("--report", o.report, "write a page")->type_name("FILE.html");
}

const CLI::App* add_gpu_dispatch_options(CLI::App& app, BenchOptions& o) {
  CLI::App* group = app.add_option_group("Dispatch on GPUs (lists with commas)");
  group->add_option("--mode", o.modes, "high throughput, low latency (default both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"ht", "ll"}));
  group->add_option("--dtype", o.dtypes, "how rows travel (default both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"fp8", "bf16"}));
  group->add_option("--hidden", o.hidden, "(default 7168)")->check(from_one_to(1 << 20));
  return group;
}

const CLI::App* add_gpu_bench_options(CLI::App& app, BenchOptions& o) {
  CLI::App* group = app.add_option_group("Experts, dispatch and layer on GPUs");
  group->add_option("--iterations", o.iterations, "timed calls per case (default 50)")
      ->check(from_one_to(1000000));
  return group;
}

const CLI::App* add_gpu_ranks_options(CLI::App& app, BenchOptions& o) {
  CLI::App* group = app.add_option_group("Dispatch and layer on GPUs");
  group->add_option("--group", o.group, "what windows are made of (default threads)")
      ->check(CLI::IsMember({"threads", "nccl"}));
  group->add_option("--sms", o.sms, "N,N,...: SMs of a transport's kernels (default: as computed)")
      ->delimiter(',')
      ->check(from_one_to(1024));
  group
      ->add_option("--sum", o.sums,
                   "NAME,NAME: what a low-latency combine sends back, see run (default: dispatch "
                   "both, layer selections)")
      ->delimiter(',')
      ->check(CLI::IsMember(BenchOptions::kSums));
  group
      ->add_option("--experts", o.experts,
                   "of all ranks (default: dispatch 256, layer the model's)")
      ->check(from_one_to(1 << 20));
  group->add_option("--topk", o.topk, "experts of a token (default: dispatch 8, layer the model's)")
      ->check(from_one_to(1024));
  return group;
}

const CLI::App* add_gpu_layer_options(CLI::App& app, BenchOptions& o) {
  CLI::App* group = app.add_option_group("Layer on GPUs");
  group->add_option("--microbatches", o.microbatches, "N,N,...: see run (default 1)")
      ->delimiter(',')
      ->check(from_one_to(64));
  group->add_option("--combine-parts", o.combine_parts, "N,N,...: see run (default: as computed)")
      ->delimiter(',')
      ->check(from_one_to(64));
  group->add_option("--early-rows", o.early_rows, "N,N,...: see run (default: as computed)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{0}, kMaxTokens));
  group->add_option("--pause", o.pause_ms, "milliseconds before each call (default 0)")
      ->check(CLI::Range(0.0, 1e3));
  group
      ->add_option("--all2all", o.all2all,
                   "NAME,NAME: transports (default: low_latency up to 256 tokens, else "
                   "high_throughput)")
      ->delimiter(',')
      ->check(CLI::IsMember({"high_throughput", "low_latency"}));
  add_router_sums(*group, o.router_sums);
  return group;
}

void add_plan_options(CLI::App& app, PlanOptions& o) {
  const auto positive = CLI::Range(1e-6, 1e9);
  const auto not_negative = CLI::Range(0.0, 1e9);
  app.add_option("--preset", o.preset, "a model's name (see moebius info)")->type_name("NAME");
  app.add_option("--model", o.model, "or a model folder, of which config.json is read")
      ->type_name("DIR");
  app.add_option("--quant", o.quant, "auto, none, fp8, int8, int4 or a scheme (see moebius info)");
  app.add_option("--ranks", o.ranks, "number of ranks (default 1)")->check(from_one_to(1 << 14));
  app.add_option("--ranks-per-node", o.ranks_per_node, "(default: GPUs 8, else all on one)")
      ->check(from_one_to(1 << 20));
  app.add_option("--tp", o.tp, "ranks that hold the same tokens (default 1)")
      ->check(from_one_to(1 << 14));
  app.add_flag("--no-ep", o.no_ep, "shard every expert over all ranks");
  app.add_option("--tokens", o.tokens, "per rank and call (default 128)")
      ->check(from_one_to(kMaxTokens));
  app.add_option("--microbatches", o.microbatches, "parts of a call that overlap (default 1)")
      ->check(from_one_to(64));
  add_sum(app, o.sum);
  app.add_option("--layers", o.layers, "MoE layers that a rank has a share of (default: all)")
      ->check(from_one_to(1000));
  app.add_option("--redundant-experts", o.redundant_experts, "second places for experts")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  app.add_option("--skew", o.skew, "the n-th most popular expert weighs n^-skew (default 0)")
      ->check(CLI::Range(0.0, 10.0));
  app.add_flag("--ungrouped", o.ungrouped, "every expert is open to every token");
  app.add_option("--machine", o.machine, "h200, cpu, here (measured now) or FILE.json");
  app.add_option("--link-gb-per-s", o.link_gb_per_s, "within a node, per rank and way")
      ->check(positive);
  app.add_option("--link-latency-us", o.link_latency_us, "within a node")->check(not_negative);
  app.add_option("--node-gb-per-s", o.node_gb_per_s, "between nodes, per rank and way")
      ->check(positive);
  app.add_option("--node-latency-us", o.node_latency_us, "between nodes")->check(not_negative);
  app.add_option("--tflops", o.tflops, "products of the experts, per rank")->check(positive);
  app.add_option("--memory-gb-per-s", o.memory_gb_per_s, "reading weights")->check(positive);
  app.add_option("--memory-gb", o.memory_gb, "of a rank")->check(positive);
  app.add_option("--sweep", o.sweep, "also over ranks (to 2048) or tokens (to 16384)")
      ->check(CLI::IsMember({"ranks", "tokens"}));
  app.add_option("--json", o.json, "write every printed figure")->type_name("FILE");
}

// CLI11 fills the options in place while it parses; `chosen` moves out those of the subcommand.
class Parser {
 public:
  Parser() : app_("MoE layers on one to many workers", "moebius") {
    app_.require_subcommand(1);
    app_.set_version_flag("--version", version_line());

    CLI::App* run = app_.add_subcommand("run", "Run one MoE layer of a checkpoint");
    add_layer_options(*run, run_);
    add_parallel_options(*run, run_);
    add_report_options(*run, run_);

    CLI::App* make =
        app_.add_subcommand("make-model", "Write a synthetic checkpoint of a model's exact shape");
    make->add_option("--preset", make_.preset, "a model's name; list prints them")->required();
    make->add_option("--layers", make_.layers, "MoE layers (default 1)")->check(from_one_to(1000));
    make->add_option("--quant", make_.quant, "none, fp8, int8, int4, mxfp4 or nvfp4");
    make->add_option("--seed", make_.seed, "of the random weights (default 0)");
    make->add_option("--output", make_.output, "folder to write")->type_name("DIR");

    CLI::App* bench =
        app_.add_subcommand("bench", "Check one stage, or a whole layer, then time it");
    bench->add_option("stage", bench_.stage)
        ->required()
        ->check(CLI::IsMember({"quant", "router", "experts", "dispatch", "layer"}));
    bench->add_option("--problem", bench_.problem, "one problem (default: all)");
    bench->add_option("--impl", bench_.impl, "one implementation (default: all that accept)");
    bench->add_flag("--check,!--no-check", bench_.check, "compare with ref first (default)");
    bench->add_option("--threads", bench_.threads, "CPU threads")->check(from_one_to(4096));
    bench
        ->add_option("--ranks", bench_.ranks,
                     "ranks of dispatch (default: 1, 2, 4 and 8; on GPUs as many as there are), "
                     "and of layer on GPUs")
        ->check(from_one_to(1024));
    bench->add_option("--min-time", bench_.min_time, "CPUs: seconds of measurement per case")
        ->check(CLI::Range(0.0, 3600.0));
    bench->add_option("--json", bench_.json, "write one line per case")->type_name("FILE");
    bench->add_option("--preset", bench_.preset, "layer: a model's name (see moebius info)");
    bench->add_option("--quant", bench_.quant, "layer: none or a scheme (see moebius info)");
    bench
        ->add_option("--tokens", bench_.tokens,
                     "T,T,...: layer (default 1,8,64,512,2048,8192; on GPUs 128,4096 per rank), "
                     "dispatch on GPUs")
        ->delimiter(',')
        ->check(from_one_to(kMaxTokens));
    bench->add_option("--device", bench_.device, "of experts, dispatch and layer (default cpu)")
        ->check(CLI::IsMember({"cpu", "cuda"}));
    gpu_bench_ = add_gpu_bench_options(*bench, bench_);
    gpu_ranks_ = add_gpu_ranks_options(*bench, bench_);
    gpu_layer_ = add_gpu_layer_options(*bench, bench_);
    gpu_dispatch_ = add_gpu_dispatch_options(*bench, bench_);

    CLI::App* verify =
        app_.add_subcommand("verify", "Compare every implementation with the reference");
    CLI::Option* page = verify->add_flag("--markdown", verify_.markdown,
                                         "print docs/conformance.md, run nothing else");
    verify->add_option("--stage", verify_.stage, "one stage (default: all)")
        ->check(CLI::IsMember({"quant", "router", "experts", "dispatch", "layer"}))
        ->excludes(page);
    verify->add_option("--problem", verify_.problem, "one case (default: all)")->excludes(page);
    verify->add_option("--threads", verify_.threads, "CPU threads")->check(from_one_to(4096));
    verify->add_option("--json", verify_.json, "write the matrix")
        ->type_name("FILE")
        ->excludes(page);

    CLI::App* info = app_.add_subcommand("info", "This machine, this build, or a checkpoint");
    CLI::Option* table =
        info->add_flag("--markdown", info_.markdown, "the support table of README.md");
    info->add_option("--model", info_.model, "describe a model folder instead")
        ->type_name("DIR")
        ->excludes(table);
    info->add_option("--json", info_.json, "write every printed figure")
        ->type_name("FILE")
        ->excludes(table);

    add_plan_options(
        *app_.add_subcommand("plan", "Predict bytes, memory and times of a deployment"), plan_);
    check_values(app_);
  }

  std::variant<Options, int> parse(int argc, const char* const* argv) {
    expect_known_subcommand(argc > 1 ? argv[1] : "");
    expect_no_empty_elements(argc, argv);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) {
        return app_.exit(error);
      }
      if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
        expect_known_options(argc, argv);
      }
      throw InvalidArgument(fmt::format("{} (see moebius{} --help)", error.what(), subcommand()));
    }
    expect_no_gpu_option_elsewhere();
    expect_bench_options_used();
    return chosen();
  }

 private:
  // CLI11 would only say that one is required.
  void expect_known_subcommand(const std::string& word) const {
    std::string known;
    if (word.starts_with('-') && app_.get_option_no_throw(word) == nullptr) {
      throw InvalidArgument(fmt::format("no option is named {} (see moebius --help)", word));
    }
    for (const CLI::App* subcommand : app_.get_subcommands({})) {
      if (word.empty() || word.front() == '-' || subcommand->get_name() == word) {
        return;
      }
      known += (known.empty() ? "" : ", ") + subcommand->get_name();
    }
    throw InvalidArgument(fmt::format("no subcommand is named {} (there are {})", word, known));
  }

  // nullptr: none, or no other word.
  const CLI::App* named_subcommand(int argc, const char* const* argv) const {
    const auto named = app_.get_subcommands(
        [&](const CLI::App* subcommand) { return argc > 2 && subcommand->get_name() == argv[1]; });
    return named.empty() ? nullptr : named.front();
  }

  // CLI11 would pass over them.
  void expect_no_empty_elements(int argc, const char* const* argv) const {
    const CLI::App* chosen = named_subcommand(argc, argv);
    for (int i = 2; chosen != nullptr && i < argc; ++i) {
      const std::string word = argv[i];
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const CLI::Option* option =
          name.starts_with("--") ? chosen->get_option_no_throw(name) : nullptr;
      if (option == nullptr || !is_list(*option)) {
        continue;
      }
      const std::string list = equals != std::string::npos ? word.substr(equals + 1)
                               : i + 1 < argc              ? argv[i + 1]
                                                           : "";
      if (has_empty_element(list, option->get_delimiter())) {
        throw InvalidArgument(
            fmt::format("{}: {} has an empty value (see moebius {} --help)", name, list, argv[1]));
      }
    }
  }

  // A misspelt one that is required.
  void expect_known_options(int argc, const char* const* argv) const {
    const CLI::App* chosen = named_subcommand(argc, argv);
    for (int i = 2; chosen != nullptr && i < argc; ++i) {
      const std::string word = argv[i];
      const std::string name = word.substr(0, word.find('='));
      if (name.starts_with("--") && chosen->get_option_no_throw(name) == nullptr) {
        throw InvalidArgument(fmt::format("moebius {} has no option {} (see moebius {} --help)",
                                          argv[1], name, argv[1]));
      }
    }
  }

  // Options that some benches would pass over.
  void expect_bench_options_used() const {
    const CLI::App& bench = *app_.get_subcommand("bench");
    const bool is_layer = bench_.stage == "layer";
    const bool is_gpu_dispatch = bench_.stage == "dispatch" && bench_.device == "cuda";
    const auto expect_unused = [&](std::string_view name, bool is_used, std::string_view owner) {
      if (!is_used && bench.get_option(std::string(name))->count() > 0) {
        throw InvalidArgument(fmt::format("{} is an option of {} only", name, owner));
      }
    };
    if (!bench.parsed()) {
      return;
    }
    expect_unused("--preset", is_layer, "bench layer");
    expect_unused("--quant", is_layer, "bench layer");
    expect_unused("--tokens", is_layer || is_gpu_dispatch,
                  "bench layer and of bench dispatch --device cuda");
    expect_unused("--problem", !is_layer && !is_gpu_dispatch,
                  "bench quant, router, experts and dispatch on CPUs");
    expect_unused("--min-time", bench_.device != "cuda",
                  "benches on CPUs (on GPUs there is --iterations)");
    expect_unused("--impl", !is_gpu_dispatch, "benches but bench dispatch --device cuda");
  }

  void expect_no_gpu_option_elsewhere() const {
    const bool on_gpus = bench_.device == "cuda";
    if (!on_gpus) {
      expect_none_of(*gpu_bench_, "bench experts, dispatch and layer with --device cuda");
    }
    if (!on_gpus || bench_.stage == "experts") {
      expect_none_of(*gpu_ranks_, "bench dispatch and bench layer with --device cuda");
    }
    if (!on_gpus || bench_.stage != "layer") {
      expect_none_of(*gpu_layer_, "bench layer --device cuda");
    }
    if (!on_gpus || bench_.stage != "dispatch") {
      expect_none_of(*gpu_dispatch_, "bench dispatch --device cuda");
    }
  }

  static void expect_none_of(const CLI::App& group, std::string_view owner) {
    for (const CLI::Option* option : group.get_options()) {
      if (option->count() > 0) {
        throw InvalidArgument(fmt::format("{} is an option of {} only", option->get_name(), owner));
      }
    }
  }

  std::string subcommand() const {
    const auto parsed = app_.get_subcommands();
    return parsed.empty() ? "" : " " + parsed.front()->get_name();
  }

  Options chosen() {
    const std::string name = app_.get_subcommands().front()->get_name();
    if (name == "run") {
      return run_;
    }
    if (name == "make-model") {
      return make_;
    }
    if (name == "bench") {
      return bench_;
    }
    if (name == "verify") {
      return verify_;
    }
    if (name == "info") {
      return info_;
    }
    return plan_;
  }

  RunOptions run_;
  MakeModelOptions make_;
  BenchOptions bench_;
  const CLI::App* gpu_bench_ = nullptr;
  const CLI::App* gpu_ranks_ = nullptr;
  const CLI::App* gpu_layer_ = nullptr;
  const CLI::App* gpu_dispatch_ = nullptr;
  VerifyOptions verify_;
  InfoOptions info_;
  PlanOptions plan_;
  CLI::App app_;
};

}  // namespace

std::variant<Options, int> parse_command_line(int argc, const char* const* argv) {
  return Parser().parse(argc, argv);
}

}  // namespace moebius::app
