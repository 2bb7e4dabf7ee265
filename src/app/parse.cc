// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The command line of every subcommand.  Why longer than 500 lines: each option is one statement,
// and all of them can be read in one place beside docs/command.md.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "app/build_info.h"
#include "app/options.h"
#include "moebius/error.h"
#include "moebius/parallel_config.h"

namespace moebius::app {

namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int64_t kMaxTokens = int64_t{1} << 31;
const std::vector<std::string> kStageNames = {"quant", "router", "experts", "dispatch", "layer"};
constexpr uint64_t kMaxSeed = std::numeric_limits<uint64_t>::max();

// Returns an error for a text that is no decimal number.  Why: CLI11 reads 010 as 8, and -1 as the
// largest number there is.
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

// The error for a value that begins with "--".  It is the next option, and the value is missing, as
// after a shell variable that was not set.
std::string next_option_error(const std::string& text, const std::string& type) {
  const bool is_folder = type.starts_with("DIR");
  const std::string hint =
      is_folder || type.starts_with("FILE")
          ? fmt::format(" (a {} of that name: ./{})", is_folder ? "folder" : "file", text)
          : "";
  return fmt::format("is followed by {}, expected {}{}", text,
                     type.starts_with("TEXT") ? "a value" : type, hint);
}

// Whether the option takes values with commas between them.
bool is_list(const CLI::Option& option) {
  return option.get_delimiter() != '\0';
}

bool has_empty_element(std::string_view list, char delimiter) {
  return list.starts_with(delimiter) || list.ends_with(delimiter) ||
         list.find(std::string(2, delimiter)) != std::string_view::npos;
}

// Checks the value of every option that takes one, before the option's own check.  An empty value
// is refused, since it is usually a shell variable that was not set.
void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0) {
      continue;
    }
    if (is_list(*option)) {
      option->allow_extra_args(false);  // the word after a list does not belong to it
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
    option->transform(CLI::Validator(check, ""));  // check() would run it last
  }
  for (CLI::App* group : app.get_subcommands({})) {
    check_values(*group);
  }
}

// Adds an option.  That of a vector takes values with commas between them.
template <typename T>
CLI::Option* add(CLI::App& app, const char* name, T& value, const char* text) {
  CLI::Option* option = app.add_option(name, value, text);
  if constexpr (requires { value.push_back(value[0]); } && !std::is_same_v<T, std::string>) {
    option->delimiter(',');
  }
  return option;
}

template <typename T, typename Bound>
CLI::Option* add_number(
    CLI::App& app, const char* name, T& value, Bound first, Bound last, const char* text) {
  return add(app, name, value, text)->check(CLI::Range(first, last));
}

// Adds an option for a number from 1 to `last`.
template <typename T>
CLI::Option* add_count(CLI::App& app, const char* name, T& value, int64_t last, const char* text) {
  return add_number(app, name, value, int64_t{1}, last, text);
}

// Adds an option for one of a few words, or for a list of them.
template <typename T>
CLI::Option* add_choice(CLI::App& app,
                        const char* name,
                        T& value,
                        const std::vector<std::string>& words,
                        const char* text) {
  return add(app, name, value, text)->check(CLI::IsMember(words));
}

// Replaces a name of vLLM by ours, and returns an error for one that has no counterpart.
std::string own_transport_name(std::string& text) {
  try {
    if (const auto backend = all2all_backend_from_name(text)) {
      text = name(*backend);
    }
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "";
}

// Adds an option for a transport between ranks, or for a list of them.
template <typename T>
void add_transport(CLI::App& app,
                   T& value,
                   const std::vector<std::string>& words,
                   const char* text) {
  add_choice(app, "--all2all", value, words, text)
      ->transform(CLI::Validator(own_transport_name, ""));
}

void add_json(CLI::App& app, std::string& path, const char* text = "write every printed figure") {
  app.add_option("--json", path, text)->type_name("FILE");
}

void add_sum(CLI::App& app, std::string& sum) {
  add_choice(app, "--sum", sum, BenchOptions::kSums,
             "what low_latency's combine sends back: a row per selection (default), or sums "
             "per rank");
}

void add_router_sums(CLI::App& app, std::string& router_sums) {
  add_choice(app, "--router-sums", router_sums, {"stated", "tensor"},
             "GPUs: how router logits are summed: stated, the same bits everywhere (default), "
             "or tensor, by tensor cores, faster");
}

void add_threads(CLI::App& app, int& threads, const char* text = "CPU threads") {
  add_count(app, "--threads", threads, 4096, text);
}

void add_numa(CLI::App& app, std::string& numa) {
  add_choice(app, "--numa", numa, {"off", "experts", "interleave"},
             "CPUs: where experts lie in the memory of several nodes (default: MOEBIUS_NUMA, else "
             "off)");
}

void add_layer_options(CLI::App& app, RunOptions& o) {
  app.add_option("--model", o.model, "Hugging Face model folder")->required()->type_name("DIR");
  CLI::Option* layer = add_number(app, "--layer", o.layer, int64_t{0}, int64_t{kMaxInt},
                                  "layer index (default: the first MoE layer)");
  app.add_flag("--all-layers", o.all_layers,
               "every MoE layer after the other, one in memory at a time")
      ->excludes(layer);
  CLI::Option* input = app.add_option("--input", o.input, "hidden states [T, H]: bf16, f16 or f32");
  input->type_name("FILE.safetensors");
  app.add_option("--input-tensor", o.input_tensor, "its name (default: the only one of the file)")
      ->needs(input)
      ->type_name("NAME");
  add_count(app, "--tokens", o.tokens, kMaxTokens,
            "synthetic input of this many tokens (default 64)")
      ->excludes(input);
  app.add_option("--seed", o.seed, "seed of the synthetic input (default 0)")->excludes(input);
  app.add_option("--output", o.output, "where to write tensor \"output\" [T, H] f32")
      ->type_name("FILE.safetensors")
      ->excludes("--all-layers");
  app.add_option("--quant", o.quant,
                 "auto: as the checkpoint says; none: activations not quantized; or a scheme to "
                 "quantize an unquantized checkpoint with (fp8_w8a8, int4_w4a16, ...)");
  add_choice(app, "--format", o.format, {"standard", "batched"}, "how rows reach the experts");
  app.add_option("--experts", o.experts, "experts implementation to force (see moebius info)")
      ->type_name("NAME");
  add_count(app, "--chunk-tokens", o.kernel.chunk_tokens, kMaxTokens,
            "rows per pass through a rank's experts: on one rank tokens; not of batched rows");
}

void add_parallel_options(CLI::App& app, RunOptions& o) {
  add_choice(app, "--device", o.device, {"cpu", "cuda"}, "where ranks compute");
  add_choice(app, "--group", o.group, {"threads", "mpi", "nccl"}, "what a rank is");
  add_count(app, "--ranks", o.ranks, kMaxInt, "number of ranks");
  add_count(app, "--ranks-per-node", o.ranks_per_node, kMaxInt,
            "pretend that nodes are this small");
  add_count(app, "--tp", o.tp, kMaxInt, "tensor parallel size");
  add_count(app, "--dp", o.dp, kMaxInt, "data parallel size");
  app.add_flag("--no-ep", o.no_ep, "shard every expert instead of distributing experts");
  add_transport(app, o.all2all,
                {"none", "allgather_reducescatter", "high_throughput", "low_latency"},
                "transport between ranks, also by vLLM's names: naive (allgather_reducescatter), "
                "deepep_high_throughput, deepep_low_latency");
  app.add_flag("--monolithic", o.monolithic, "router logits travel, the experts route");
  add_router_sums(app, o.router_sums);
  add_sum(app, o.sum);
  add_count(app, "--microbatches", o.kernel.microbatches, 64,
            "parts of a call that overlap (default 1)");
  add_count(app, "--comm-sms", o.comm_sms, 1024,
            "GPUs: SMs of each transport kernel, even (default: as the backend computes)");
  add_count(app, "--combine-parts", o.kernel.combine_parts, 64,
            "GPUs: parts by columns in which high_throughput sends results back (default: as "
            "computed)");
  add_number(app, "--early-rows", o.kernel.early_rows, int64_t{0}, kMaxTokens,
             "GPUs: rows of a rank from which experts begin before all are there, 0: never "
             "(default: as computed)");
  add_number(app, "--capacity", o.capacity, int64_t{0}, kMaxTokens,
             "high_throughput on GPUs: rows that a rank has room for, so that no host waits for "
             "their number (0, the default with --graph: for the tokens of all ranks)");
}

void add_report_options(CLI::App& app, RunOptions& o) {
  add_threads(app, o.threads, "CPU threads (default: all usable)");
  add_numa(app, o.numa);
  add_count(app, "--repeat", o.repeat, 1000000, "timed calls after one warm-up (default 3)");
  app.add_flag("--graph", o.graph, "with --device cuda: record a call once, time its replays");
  app.add_flag("--check", o.check, "compare with the float64 reference; exit 1 above tolerance");
  add_json(app, o.json);
  app.add_option("--trace", o.trace, "write a timeline for Perfetto")
      ->type_name("FILE")
      ->excludes("--all-layers");
  app.add_option("--report", o.report, "write a page")
      ->type_name("FILE.html")
      ->excludes("--all-layers");
}

void add_bench_options(CLI::App& app, BenchOptions& o) {
  app.add_option("stage", o.stage)->required()->check(CLI::IsMember(kStageNames));
  app.add_option("--problem", o.problem, "one problem (default: all)");
  app.add_option("--impl", o.impl, "one implementation (default: all that accept)");
  app.add_flag("--check,!--no-check", o.check, "compare with ref first (default)");
  add_threads(app, o.threads);
  add_numa(app, o.numa);
  add_count(app, "--ranks", o.ranks, 1024,
            "ranks of dispatch (default: 1, 2, 4 and 8; on GPUs as many as there are), "
            "and of layer on GPUs");
  add_number(app, "--min-time", o.min_time, 0.0, 3600.0, "CPUs: seconds of measurement per case");
  add_json(app, o.json, "write one line per case");
  app.add_option("--preset", o.preset, "layer: a model's name (see moebius info)");
  app.add_option("--quant", o.quant, "layer: none or a scheme (see moebius info)");
  add_count(app, "--tokens", o.tokens, kMaxTokens,
            "T,T,...: layer (default 1,8,64,512,2048,8192; on GPUs 128,4096 per rank), "
            "dispatch on GPUs");
  add_choice(app, "--device", o.device, {"cpu", "cuda"},
             "of experts, dispatch and layer (default cpu)");
}

void add_gpu_bench_options(CLI::App& app, BenchOptions& o) {
  add_count(app, "--iterations", o.iterations, 1000000, "timed calls per case (default 50)");
}

void add_gpu_cold_options(CLI::App& app, BenchOptions& o) {
  add_choice(app, "--l2-lines", o.l2_lines, {"written", "read"},
             "what L2 holds before a call, instead of weights: lines that were written, and go to "
             "memory during it, or read (default written)");
}

void add_gpu_ranks_options(CLI::App& app, BenchOptions& o) {
  add_choice(app, "--group", o.group, {"threads", "nccl"},
             "what windows are made of (default threads)");
  add_count(app, "--sms", o.sms, 1024,
            "N,N,...: SMs of a transport's kernels (default: as computed)");
  add_choice(app, "--sum", o.sums, BenchOptions::kSums,
             "NAME,NAME: what a low-latency combine sends back, see run (default: dispatch "
             "both, layer selections)");
  add_count(app, "--experts", o.experts, 1 << 20,
            "of all ranks (default: dispatch 256, layer the model's)");
  add_count(app, "--topk", o.topk, 1024,
            "experts of a token (default: dispatch 8, layer the model's)");
}

void add_gpu_layer_options(CLI::App& app, BenchOptions& o) {
  add_count(app, "--microbatches", o.microbatches, 64, "N,N,...: see run (default 1)");
  add_count(app, "--combine-parts", o.combine_parts, 64, "N,N,...: see run (default: as computed)");
  add_number(app, "--early-rows", o.early_rows, int64_t{0}, kMaxTokens,
             "N,N,...: see run (default: as computed)");
  add_number(app, "--pause", o.pause_ms, 0.0, 1e3, "milliseconds before each call (default 0)");
  add_transport(app, o.all2all, {"high_throughput", "low_latency"},
                "NAME,NAME: transports, see run (default: low_latency up to 256 tokens, else "
                "high_throughput)");
  add_router_sums(app, o.router_sums);
}

void add_gpu_dispatch_options(CLI::App& app, BenchOptions& o) {
  add_choice(app, "--mode", o.modes, {"ht", "ll"}, "high throughput, low latency (default both)");
  add_choice(app, "--dtype", o.dtypes, {"fp8", "bf16"}, "how rows travel (default both)");
  add_count(app, "--hidden", o.hidden, 1 << 20, "(default 7168)");
}

void add_plan_options(CLI::App& app, PlanOptions& o) {
  const auto add_positive = [&](const char* name, std::optional<double>& value, const char* text) {
    add_number(app, name, value, 1e-6, 1e9, text);
  };
  app.add_option("--preset", o.preset, "a model's name (see moebius info)")->type_name("NAME");
  app.add_option("--model", o.model, "or a model folder, of which config.json is read")
      ->type_name("DIR");
  app.add_option("--quant", o.quant, "auto, none, fp8, int8, int4 or a scheme (see moebius info)");
  add_count(app, "--ranks", o.ranks, 1 << 14, "number of ranks (default 1)");
  add_count(app, "--ranks-per-node", o.ranks_per_node, 1 << 20,
            "(default: GPUs 8, else all on one)");
  add_count(app, "--tp", o.tp, 1 << 14, "ranks that hold the same tokens (default 1)");
  app.add_flag("--no-ep", o.no_ep, "shard every expert over all ranks");
  add_count(app, "--tokens", o.tokens, kMaxTokens, "per rank and call (default 128)");
  add_count(app, "--microbatches", o.microbatches, 64, "parts of a call that overlap (default 1)");
  add_sum(app, o.sum);
  add_count(app, "--layers", o.layers, 1000,
            "MoE layers that a rank has a share of (default: all)");
  add_number(app, "--redundant-experts", o.redundant_experts, int64_t{0}, int64_t{1} << 20,
             "second places for experts");
  add_number(app, "--skew", o.skew, 0.0, 10.0,
             "the n-th most popular expert weighs n^-skew (default 0)");
  app.add_flag("--ungrouped", o.ungrouped, "every expert is open to every token");
  app.add_option("--machine", o.machine, "h200, cpu, here (measured now) or FILE.json");
  add_positive("--link-gb-per-s", o.link_gb_per_s, "within a node, per rank and way");
  add_number(app, "--link-latency-us", o.link_latency_us, 0.0, 1e9, "within a node");
  add_positive("--node-gb-per-s", o.node_gb_per_s, "between nodes, per rank and way");
  add_number(app, "--node-latency-us", o.node_latency_us, 0.0, 1e9, "between nodes");
  add_positive("--tflops", o.tflops, "products of the experts, per rank");
  add_positive("--memory-gb-per-s", o.memory_gb_per_s, "reading weights");
  add_positive("--memory-gb", o.memory_gb, "of a rank");
  add_choice(app, "--sweep", o.sweep, {"ranks", "tokens"},
             "also over ranks (to 2048) or tokens (to 16384)");
  add_json(app, o.json);
}

// A group of options that only some benches on GPUs read.
struct GpuGroup {
  const char* title;
  void (*add)(CLI::App& app, BenchOptions& options);
  std::vector<std::string_view> stages;  // the stages that read them
  std::string_view owner;
};
const GpuGroup kGpuGroups[] = {
    {"Experts, dispatch and layer on GPUs",
     add_gpu_bench_options,
     {"quant", "router", "experts", "dispatch", "layer"},
     "bench experts, dispatch and layer with --device cuda"},
    {"Experts and layer on GPUs",
     add_gpu_cold_options,
     {"quant", "router", "experts", "layer"},
     "bench experts and bench layer with --device cuda"},
    {"Dispatch and layer on GPUs",
     add_gpu_ranks_options,
     {"quant", "router", "dispatch", "layer"},
     "bench dispatch and bench layer with --device cuda"},
    {"Layer on GPUs", add_gpu_layer_options, {"layer"}, "bench layer --device cuda"},
    {"Dispatch on GPUs (lists with commas)",
     add_gpu_dispatch_options,
     {"dispatch"},
     "bench dispatch --device cuda"},
};

// CLI11 fills the options in place while it parses; `chosen` returns those of the subcommand.
class Parser {
 public:
  Parser() : app_("MoE layers on one to many workers", "moebius") {
    app_.require_subcommand(1);
    app_.set_version_flag("--version", version_line());

    CLI::App* run = app_.add_subcommand("run", "Run one MoE layer of a checkpoint, or all of them");
    add_layer_options(*run, run_);
    add_parallel_options(*run, run_);
    add_report_options(*run, run_);

    CLI::App* make =
        app_.add_subcommand("make-model", "Write a synthetic checkpoint of a model's exact shape");
    make->add_option("--preset", make_.preset, "a model's name; list prints them")->required();
    add_count(*make, "--layers", make_.layers, 1000, "MoE layers (default 1)");
    make->add_option("--quant", make_.quant, "none, fp8, int8, int4, mxfp4 or nvfp4");
    make->add_option("--seed", make_.seed, "of the random weights (default 0)");
    make->add_option("--output", make_.output, "folder to write")->type_name("DIR");

    CLI::App* bench =
        app_.add_subcommand("bench", "Check one stage, or a whole layer, then time it");
    add_bench_options(*bench, bench_);
    for (const GpuGroup& group : kGpuGroups) {
      CLI::App* options = bench->add_option_group(group.title);
      group.add(*options, bench_);
      gpu_options_.push_back(options);
    }

    CLI::App* verify =
        app_.add_subcommand("verify", "Compare every implementation with the reference");
    CLI::Option* page = verify->add_flag("--markdown", verify_.markdown,
                                         "print docs/conformance.md, run nothing else");
    add_choice(*verify, "--stage", verify_.stage, kStageNames, "one stage (default: all)")
        ->excludes(page);
    verify->add_option("--problem", verify_.problem, "one case (default: all)")->excludes(page);
    add_threads(*verify, verify_.threads);
    add_json(*verify, verify_.json, "write the matrix");
    verify->get_option("--json")->excludes(page);

    CLI::App* info = app_.add_subcommand("info", "This machine, this build, or a checkpoint");
    CLI::Option* table =
        info->add_flag("--markdown", info_.markdown, "the support table of README.md");
    info->add_option("DIR,--model", info_.model,
                     "what is in a model folder, and what would compute it or why nothing does")
        ->type_name("DIR")
        ->excludes(table);
    add_json(*info, info_.json);
    info->get_option("--json")->excludes(table);

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
    expect_bench_options_used();
    return chosen();
  }

 private:
  // Throws for a word that is no subcommand.  CLI11 would only say that a subcommand is required.
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

  // The subcommand that is named first; nullptr where none is, or where no word follows it.
  const CLI::App* named_subcommand(int argc, const char* const* argv) const {
    const auto named = app_.get_subcommands(
        [&](const CLI::App* subcommand) { return argc > 2 && subcommand->get_name() == argv[1]; });
    return named.empty() ? nullptr : named.front();
  }

  // Throws for lists such as "1,,2", whose empty elements CLI11 would ignore.
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

  // Throws for an option that does not exist.  Without this a misspelt option that is required
  // would only be reported as missing.
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

  // Throws for an option that the chosen bench would ignore.
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
    for (size_t g = 0; g < gpu_options_.size(); ++g) {
      const GpuGroup& group = kGpuGroups[g];
      const bool is_used =
          bench_.device == "cuda" &&
          std::find(group.stages.begin(), group.stages.end(), bench_.stage) != group.stages.end();
      for (const CLI::Option* option : gpu_options_[g]->get_options()) {
        expect_unused(option->get_name(), is_used, group.owner);
      }
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

  std::string subcommand() const {
    const auto parsed = app_.get_subcommands();
    return parsed.empty() ? "" : " " + parsed.front()->get_name();
  }

  Options chosen() const {
    const std::string name = app_.get_subcommands().front()->get_name();
    return name == "run"          ? Options(run_)
           : name == "make-model" ? Options(make_)
           : name == "bench"      ? Options(bench_)
           : name == "verify"     ? Options(verify_)
           : name == "info"       ? Options(info_)
                                  : Options(plan_);
  }

  RunOptions run_;
  MakeModelOptions make_;
  BenchOptions bench_;
  std::vector<const CLI::App*> gpu_options_;  // of kGpuGroups
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
