#include "sim/memory/vllm_log.hpp"

#include <cmath>
#include <regex>
#include <sstream>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/number_text.hpp"

namespace kvsim {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kMiB = 1024.0 * 1024.0;

double number(std::string text, std::string_view line, const std::string& place) {
  std::erase(text, ',');
  double value = 0;
  const auto [end, error] = number_from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw InputError{fmt::format("{}: expected a number, got \"{}\" in: {}", place, text, line)};
  }
  constexpr double kMost = 4e9;  // GiB, or tokens: beyond it bytes are not counted in 64 bits
  if (!(std::abs(value) <= kMost)) {
    throw InputError{fmt::format("{}: expected a number of at most {}, got \"{}\" in: {}", place,
                                 kMost, text, line)};
  }
  return value;
}

/// A wording, and what its groups are: each group's target by number.
struct Wording {
  std::regex pattern;
  std::vector<std::optional<Bytes> VllmLog::*> gib{};
};

const std::vector<Wording>& size_wordings() {
  constexpr auto kFlags = std::regex::ECMAScript | std::regex::icase | std::regex::optimize;
  const std::string size = R"((-?[\d.,]+)\s*Gi?B)";
  static const std::vector<Wording> wordings{
      // V0 0.6.4 to 0.8: "model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch
      // activation peak memory takes 2.07GiB; the rest of the memory reserved for KV Cache is ..."
      {std::regex{"model weights take " + size, kFlags}, {&VllmLog::weights}},
      {std::regex{"non_torch_memory takes " + size, kFlags}, {&VllmLog::non_torch}},
      {std::regex{"activation peak memory takes " + size, kFlags}, {&VllmLog::activation}},
      {std::regex{"reserved for KV Cache is " + size, kFlags}, {&VllmLog::kv_cache}},
      {std::regex{R"(total[ _]gpu[ _]memory\s*\(?)" + size, kFlags}, {&VllmLog::total}},
      // V1: "Model loading took 14.9889 GiB and 5.2 seconds"; V0: "Loading model weights took ..."
      {std::regex{"Model loading took " + size, kFlags}, {&VllmLog::weights}},
      {std::regex{"Loading model weights took " + size, kFlags}, {&VllmLog::weights}},
      {std::regex{"Available KV cache memory: " + size, kFlags}, {&VllmLog::kv_cache}},
      {std::regex{R"(Graph capturing finished in [\d.]+ secs?, took )" + size, kFlags},
       {&VllmLog::graphs}},
      // V1 at debug level: "... weights=14.99GiB, non-torch 0.13GiB, torch peak 4.76GiB"
      {std::regex{R"(Total non KV cache memory: [\d.]+\s*Gi?B; torch peak memory increase: )" +
                      size + R"(; non-torch forward increase memory: )" + size +
                      R"(; weights memory: )" + size,
                  kFlags},
       {&VllmLog::activation, &VllmLog::non_torch, &VllmLog::weights}},
      // V0 0.6.3: "Memory profiling results: total_gpu_memory=79.22GiB initial_memory_usage=...
      // peak_torch_memory=16.22GiB memory_usage_post_profile=... non_torch_memory=1.79GiB
      // kv_cache_size=53.29GiB gpu_memory_utilization=0.90"
      {std::regex{"total_gpu_memory=" + size, kFlags}, {&VllmLog::total}},
      {std::regex{"non_torch_memory=" + size, kFlags}, {&VllmLog::non_torch}},
      {std::regex{"kv_cache_size=" + size, kFlags}, {&VllmLog::kv_cache}},
  };
  return wordings;
}

Bytes gib(double value) { return Bytes{static_cast<std::int64_t>(std::llround(value * kGiB))}; }

}  // namespace

VllmLog read_vllm_log(std::string_view text, const std::string& place) {
  constexpr auto kFlags = std::regex::ECMAScript | std::regex::icase | std::regex::optimize;
  static const std::regex graphs_mib{
      R"(Graph capturing finished in [\d.]+ secs?, took ([\d.]+)\s*Mi?B)", kFlags};
  static const std::regex peak_torch{R"(peak_torch_memory=([\d.]+)\s*Gi?B)", kFlags};
  static const std::regex blocks{R"(# (?:GPU|cuda) blocks: ([\d,]+))", kFlags};
  static const std::regex tokens{R"(GPU KV cache size: ([\d,]+) tokens)", kFlags};
  static const std::regex concurrency{
      R"(Maximum concurrency for ([\d,]+) tokens per request: ([\d.,]+)x)", kFlags};
  static const std::regex fraction{
      R"((?:gpu_memory_utilization'?[=:\s]*\(?|Requested memory: )([\d.]+))", kFlags};
  // "... total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = 71.30GiB"; the list of
  // arguments: "'gpu_memory_utilization': 0.9"
  VllmLog log;
  std::optional<Bytes> peak;
  bool found = false;
  std::istringstream lines{std::string{text}};
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    const auto value = [&](std::size_t group) { return number(match[group].str(), line, place); };
    for (const Wording& wording : size_wordings()) {
      if (!std::regex_search(line, match, wording.pattern)) continue;
      for (std::size_t i = 0; i < wording.gib.size(); ++i) log.*wording.gib[i] = gib(value(i + 1));
      found = true;
    }
    if (std::regex_search(line, match, graphs_mib)) {
      log.graphs = Bytes{static_cast<std::int64_t>(std::llround(value(1) * kMiB))};
      found = true;
    }
    if (std::regex_search(line, match, peak_torch)) peak = gib(value(1));
    if (std::regex_search(line, match, blocks)) {
      log.blocks = static_cast<std::int64_t>(value(1));
      found = true;
    }
    if (std::regex_search(line, match, tokens)) {
      log.tokens = static_cast<std::int64_t>(value(1));
      found = true;
    }
    if (std::regex_search(line, match, concurrency)) {
      log.max_model_len = static_cast<std::int64_t>(value(1));
      log.max_concurrency = value(2);
      found = true;
    }
    if (std::regex_search(line, match, fraction)) log.memory_fraction = value(1);
  }
  if (!found) {
    throw InputError{fmt::format(
        "{}: expected a vLLM start-up log (lines such as \"Model loading took 14.99 GiB\" or \"GPU "
        "KV cache size: 31,232 tokens\"), found none of its figures",
        place)};
  }
  if (peak && log.weights && !log.activation) {
    log.activation = *peak - *log.weights;
    log.notes.emplace_back("activation: peak_torch_memory less the weights");
  }
  if (!log.activation && log.total && log.memory_fraction && log.weights && log.non_torch &&
      log.kv_cache) {
    log.activation = gib(static_cast<double>(log.total->count()) / kGiB * *log.memory_fraction) -
                     *log.weights - *log.non_torch - *log.kv_cache;
    log.notes.emplace_back("activation: what the other terms leave of the memory fraction");
  }
  return log;
}

}  // namespace kvsim
