// kvsim trace info, kvsim trace check: reading traces.

#include <array>
#include <filesystem>
#include <functional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/report/catalogue/describe_text.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "traces/check.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

namespace fs = std::filesystem;

constexpr std::int64_t kMaxThreads = 1024;
constexpr std::int64_t kMinRows = 2;
constexpr std::int64_t kMaxRows = 1 << 20;
constexpr std::int64_t kUsualRows = 2048;

std::string_view word_of(RopeStyle style) {
  return style == RopeStyle::kHalfSplit ? "half_split" : "interleaved";
}

/// K and V of all tokens, as recorded.
Bytes cache_bytes(const TraceInfo& info) {
  return bytes_of(2 * info.tokens * info.n_layers * info.n_kv_heads * info.head_dim, info.dtype);
}

template <class T>
ordered_json value_or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json segments_json(const TraceInfo& info) {
  ordered_json out = ordered_json::array();
  for (const TraceSegment& s : info.segments) {
    out.push_back({{"name", s.name}, {"start", s.start}, {"end", s.end}});
  }
  return out;
}

ordered_json info_json(const TraceInfo& info) {
  ordered_json out{{"schema", "kvsim.trace-info/1"},
                   {"name", info.name},
                   {"model", info.model},
                   {"n_layers", info.n_layers},
                   {"n_heads", info.n_heads},
                   {"n_kv_heads", info.n_kv_heads},
                   {"head_dim", info.head_dim},
                   {"d_model", info.d_model},
                   {"tokens", info.tokens},
                   {"prompt_tokens", info.prompt_tokens},
                   {"softmax_scale", info.softmax_scale},
                   {"dtype", name_of(info.dtype)},
                   {"kv_bytes", cache_bytes(info).count()},
                   {"rope_style", nullptr},
                   {"rope_theta", value_or_null(info.rope_theta)},
                   {"has_hidden", info.has_hidden},
                   {"has_output_projection", info.has_output_projection},
                   {"has_reused", info.has_reused},
                   {"repeat_start", value_or_null(info.repeat_start)},
                   {"repeat_tokens", value_or_null(info.repeat_tokens)},
                   {"question_start", value_or_null(info.question_start)},
                   {"answer_start", value_or_null(info.answer_start)},
                   {"segments", segments_json(info)},
                   {"scores", info.scores},
                   {"decisions", info.decisions},
                   {"metadata", info.metadata}};
  if (info.rope_style) out["rope_style"] = word_of(*info.rope_style);
  return out;
}

std::string info_text(const TraceInfo& info, std::size_t width) {
  Facts facts;
  facts.add("model", info.model);
  facts.add("tokens", fmt::format("{}, of them {} prompt and {} decode steps",
                                  with_commas(info.tokens), with_commas(info.prompt_tokens),
                                  with_commas(info.tokens - info.prompt_tokens)));
  facts.add("shape", fmt::format("{} layers, {} query heads, {} KV heads of {}", info.n_layers,
                                 info.n_heads, info.n_kv_heads, info.head_dim));
  facts.add("cache", fmt::format("{} in {}", cache_bytes(info), name_of(info.dtype)));
  facts.add("softmax scale", fmt::format("{:.6g}", info.softmax_scale));
  facts.add("RoPE", info.rope_style
                        ? fmt::format("{}, theta {}", word_of(*info.rope_style),
                                      info.rope_theta ? fmt::format("{:g}", *info.rope_theta)
                                                      : "not recorded")
                        : "style not recorded");
  facts.add("hidden states", info.has_hidden ? fmt::format("{} wide", info.d_model) : "none");
  facts.add("output projection", info.has_output_projection ? "recorded" : "none");
  if (info.has_reused) facts.add("reused rows", "recorded");
  if (info.repeat_start && info.repeat_tokens) {
    facts.add("repeat", fmt::format("{} tokens from {}", with_commas(*info.repeat_tokens),
                                    with_commas(*info.repeat_start)));
  }
  if (info.question_start || info.answer_start) {
    const auto from = [](std::string_view name, const std::optional<std::int64_t>& mark) {
      return mark ? fmt::format("{} from token {}", name, with_commas(*mark))
                  : fmt::format("no {}", name);
    };
    facts.add("marks", fmt::format("{}, {}", from("question", info.question_start),
                                   from("answer", info.answer_start)));
  }
  if (!info.segments.empty()) {
    std::string parts;
    for (const TraceSegment& s : info.segments) {
      parts += fmt::format("{}{} {}-{}", parts.empty() ? "" : ", ", s.name, with_commas(s.start),
                           with_commas(s.end));
    }
    facts.add("segments", parts);
  }
  if (!info.scores.empty()) facts.add("scores", fmt::format("{}", fmt::join(info.scores, ", ")));
  if (!info.decisions.empty()) {
    facts.add("decisions", fmt::format("{}", fmt::join(info.decisions, ", ")));
  }
  return info.name + "\n" + facts.str(width);
}

int run_info(const Arguments& arguments) {
  arguments.expect_words(1, 1, "a trace file");
  const Trace trace = Trace::open(arguments.words().front());
  write_out(arguments.has("json") ? to_file_text(info_json(trace.info()))
                                  : info_text(trace.info(), terminal_width()));
  return kDone;
}

ordered_json range_json(const HeadRange& range) {
  return {{"mean", range.mean}, {"head_min", range.low}, {"head_max", range.high}};
}

ordered_json check_json(const TraceInfo& info, const TraceCheck& check) {
  ordered_json out{{"schema", "kvsim.trace-check/1"},
                   {"trace", info.name},
                   {"tokens", check.tokens},
                   {"rows_used", check.rows_used},
                   {"late_rows_used", check.late_rows_used},
                   {"uniform_first_token", check.uniform_first_token},
                   {"uniform_last32", check.uniform_last32}};
  out["layers"] = ordered_json::array();
  for (const LayerCheck& layer : check.layers) {
    out["layers"].push_back({{"first_token", range_json(layer.first_token)},
                             {"last32", range_json(layer.last32)},
                             {"top5", range_json(layer.top5)},
                             {"top20", range_json(layer.top20)},
                             {"heavy20", range_json(layer.heavy20)},
                             {"entropy_nats", range_json(layer.entropy)},
                             {"entropy_of_uniform", range_json(layer.entropy_norm)},
                             {"worst_row_sum_error", layer.worst_row_sum}});
  }
  return out;
}

std::string check_text(const TraceInfo& info, const TraceCheck& check, std::size_t width) {
  Table table{{{"layer"},
               {"first token"},
               {"last 32"},
               {"top 5 %"},
               {"top 20 %"},
               {"heavy 20 %"},
               {"entropy"},
               {"of uniform"}}};
  const auto share = [](const HeadRange& range) { return fmt::format("{:.3f}", range.mean); };
  for (std::size_t i = 0; i < check.layers.size(); ++i) {
    const LayerCheck& layer = check.layers[i];
    table.add_row({fmt::format("{}", i), share(layer.first_token), share(layer.last32),
                   share(layer.top5), share(layer.top20), share(layer.heavy20),
                   fmt::format("{:.2f}", layer.entropy.mean), share(layer.entropy_norm)});
  }
  return paragraph(fmt::format(
                       "{}: attention rebuilt from {} rows, means over heads and over the {} "
                       "rows of the second half",
                       info.name, with_commas(check.rows_used), with_commas(check.late_rows_used)),
                   width) +
         table.str(width) +
         fmt::format("uniform attention would show first token {:.3f}, last 32 {:.3f}\n",
                     check.uniform_first_token, check.uniform_last32) +
         paragraph(
             "shares of a row's mass; heavy 20 %: all rows' mass in the heaviest fifth of the "
             "keys; entropy in nats",
             width);
}

int run_check(const Arguments& arguments) {
  arguments.expect_words(1, 1, "a trace file");
  const Trace trace = Trace::open(arguments.words().front());
  const std::int64_t rows = arguments.integer("rows", kMinRows, kMaxRows).value_or(kUsualRows);
  const int threads = static_cast<int>(arguments.integer("threads", 0, kMaxThreads).value_or(0));
  Progress progress{"checking " + fs::path{arguments.words().front()}.stem().string(),
                    static_cast<double>(trace.info().n_layers), "layers"};
  CheckWork work;
  work.for_each = [&](std::size_t count, const std::function<void(std::size_t)>& task) {
    parallel_for(count, threads, task);
  };
  if (!arguments.has("quiet")) work.progress = [&](double done) { progress.update(done); };
  const TraceCheck check = check_trace(trace, rows, work);
  progress.finish();
  write_out(arguments.has("json") ? to_file_text(check_json(trace.info(), check))
                                  : check_text(trace.info(), check, terminal_width()));
  return kDone;
}

}  // namespace

Command trace_info_command() {
  return {.name = "trace info",
          .summary = "print the contents of an attention trace",
          .usage = "kvsim trace info FILE [--json]",
          .examples = "kvsim trace info traces/samples/books-treasure-512.safetensors",
          .options = {{"json", 0, "", false, "print JSON (schema kvsim.trace-info/1)"}},
          .run = run_info};
}

Command trace_check_command() {
  return {.name = "trace check",
          .summary = "recompute a trace's attention and print how it is distributed",
          .usage = "kvsim trace check FILE [--rows N] [--threads N] [--json]",
          .examples = "kvsim trace check traces/samples/books-treasure-512.safetensors",
          .options = {{"rows", 0, "N", false, "query rows used, evenly spaced (2048)"},
                      {"threads", 'j', "N", false,
                       "threads (0: all of the machine); results do not depend on it"},
                      {"quiet", 'q', "", false, "no progress"},
                      {"json", 0, "", false, "print JSON (schema kvsim.trace-check/1)"}},
          .run = run_check};
}

}  // namespace kvsim
