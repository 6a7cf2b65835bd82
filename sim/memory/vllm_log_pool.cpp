#include "sim/memory/vllm_log_pool.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kRounding = 0.01 * kGiB;  // of the figures that vLLM prints
// Two starts of the same model hold the same weights except for padding and buffers.
constexpr double kWeightsApart = 0.1;
// A derived term that differs this much from its prediction is reported: the larger of the two.
constexpr double kTermApart = 0.5;
constexpr double kTermApartBytes = 0.5 * kGiB;
// GPUs of the same name differ by less (ECC, drivers, another process's context).
constexpr double kMemoryApart = 0.02;
// A term cannot be a measurement if it exceeds its prediction by this share of the engine's memory.
constexpr double kAbsurd = 0.25;

double of(Bytes n) { return static_cast<double>(n.count()); }
std::string gib(double bytes) { return fmt::format("{:.2f}", bytes / kGiB); }
std::string gib(Bytes n) { return gib(of(n)); }

/// The names of a logged value and of its replacement in a report.
std::string_view source_of(bool stated) { return stated ? "log" : "predicted"; }

struct Logged {
  Bytes pool;
  std::string source;  // for people
};

std::optional<std::int64_t> tokens_of(const VllmLog& log, std::int64_t block_tokens) {
  if (log.tokens) return log.tokens;
  if (log.blocks) return *log.blocks * block_tokens;
  return std::nullopt;
}

/// Whether layers release tokens that a sequence of max_model_len still has.
bool has_windows(const EngineStartup& s, std::int64_t block_tokens) {
  const std::int64_t blocks = (s.max_model_len + block_tokens - 1) / block_tokens;
  return s.sequence < s.block * blocks;
}

/// A pool larger than the GPU is of another one; sums of its bytes may also be out of range.
void check_pool_in(const EngineStartup& s, double pool, const std::string& counted,
                   const std::string& log_place) {
  if (pool <= of(s.total)) return;
  throw InputError{log_place, "a log of the scenario's start",
                   fmt::format("a KV cache of {}{} GiB in a GPU of {} GiB: the scenario's GPU, "
                               "model, kv_dtype or gpu_count differs from the log's",
                               counted, gib(pool), gib(s.total))};
}

/// The logged pool, in bytes or converted by the scenario's bytes per token; nullopt without
/// either.
std::optional<Logged> logged_pool(VllmLog& log, const EngineStartup& s, std::int64_t block_tokens,
                                  const std::string& log_place) {
  const auto tokens = tokens_of(log, block_tokens);
  if (is_stated(log.kv_cache)) check_pool_in(s, of(*log.kv_cache), "", log_place);
  if (!tokens) {
    if (!is_stated(log.kv_cache)) return std::nullopt;
    return Logged{*log.kv_cache, "log"};
  }
  if (*tokens % block_tokens != 0) {
    log.warnings.push_back(
        fmt::format("{} tokens are not a multiple of the scenario's block size {}: "
                    "engine.block_tokens differs from the log's",
                    with_commas(*tokens), block_tokens));
  }
  const double token = of(s.block) / static_cast<double>(block_tokens);
  const double bytes = token * static_cast<double>(*tokens);
  if (!is_stated(log.kv_cache)) {
    check_pool_in(s, bytes, fmt::format("{} tokens of {:.0f} B, ", with_commas(*tokens), token),
                  log_place);
    return Logged{rounded<Bytes>(bytes), "the log's tokens"};
  }
  // The pool consists of whole blocks, with a remainder of less than one.
  const double over = of(*log.kv_cache) - bytes;
  if (over < -kRounding || over > kRounding + of(s.block)) {
    log.warnings.push_back(fmt::format(
        "the log's {} tokens of the scenario's {:.0f} B each are {} GiB, its KV cache is {} GiB: "
        "the scenario's model, kv_dtype or gpu_count differs from the log's, or its figures are of "
        "different ranks{}",
        with_commas(*tokens), token, gib(bytes), gib(*log.kv_cache),
        has_windows(s, block_tokens) ? ", or the engine pads its groups of windowed layers" : ""));
    return Logged{*log.kv_cache, "log"};
  }
  // Among the byte counts that print like the log's, one that holds its tokens.
  const Bytes min{static_cast<std::int64_t>(std::ceil(bytes))};
  return Logged{std::clamp(*log.kv_cache, min, min + s.block - Bytes{1}), "log"};
}

/// A term derived from the others, and the predicted term.
struct Derived {
  const char* name;
  std::optional<Bytes> VllmLog::*term;
  Bytes value;
  Bytes predicted;
  std::string account;  // its derivation
};

Derived what_is_left(const VllmLog& log, const EngineStartup& s, const Logged& logged) {
  const auto fraction_of_total = [&] {
    return fmt::format("{} ({}) x {} ({})", s.fraction, log.memory_fraction ? "log" : "scenario",
                       gib(s.total), log.total ? "log" : "scenario");
  };
  const auto term = [](const char* name, Bytes n, std::string_view source) {
    return fmt::format("{} {} ({})", name, gib(n), source);
  };
  const std::string weights = term("weights", s.weights, source_of(is_stated(log.weights)));
  const Bytes graphs = s.counts_graphs ? s.graphs : Bytes{};
  std::string cache = term("KV cache", logged.pool, logged.source);
  if (graphs > Bytes{}) cache += " - " + term("CUDA graphs", graphs, "predicted");
  if (!is_stated(log.activation)) {
    return {
        "activation peak", &VllmLog::activation,
        s.remaining_cache(s.weights, s.non_torch, logged.pool), s.activation,
        fmt::format("{} - {} - {} - {}", fraction_of_total(), weights,
                    term("non-torch", s.non_torch, source_of(is_stated(log.non_torch))), cache)};
  }
  if (!is_stated(log.non_torch)) {
    return {"non-torch", &VllmLog::non_torch,
            s.remaining_cache(s.weights, s.activation, logged.pool), s.non_torch,
            fmt::format("{} - {} - {} - {}", fraction_of_total(), weights,
                        term("activation peak", s.activation, "log"), cache)};
  }
  const Bytes sum = s.weights + s.non_torch + s.activation + logged.pool + graphs;
  Bytes total{static_cast<std::int64_t>(std::ceil(of(sum) / s.fraction))};
  // floor(fraction x total) may be one byte short.
  while (std::floor(s.fraction * of(total)) < of(sum)) total = total + Bytes{1};
  return {
      "memory of the GPU", &VllmLog::total, total, s.total,
      fmt::format("({} + {} + {} + {}) / {} ({})", weights, term("non-torch", s.non_torch, "log"),
                  term("activation peak", s.activation, "log"),
                  graphs > Bytes{} ? term("KV cache", logged.pool, logged.source) + " + " +
                                         term("CUDA graphs", graphs, "predicted")
                                   : cache,
                  s.fraction, log.memory_fraction ? "log" : "scenario")};
}

/// Whether a term differs so much from its prediction that it cannot be of the scenario's start.
bool is_absurd(const Derived& d, const EngineStartup& s) {
  if (d.value < Bytes{}) return true;
  const double max = kAbsurd * (d.term == &VllmLog::total ? of(s.total) : of(s.usable));
  const double over = of(d.value) - of(d.predicted);
  return over > max || (d.term == &VllmLog::total && -over > max);
}

bool is_far(const Derived& d) {
  const double apart = std::abs(of(d.value) - of(d.predicted));
  if (d.term == &VllmLog::total) return apart > kMemoryApart * of(d.predicted);
  return apart > std::max(kTermApartBytes, kTermApart * of(d.predicted));
}

void check_weights(VllmLog& log, Bytes predicted) {
  if (!is_stated(log.weights)) return;
  if (std::abs(of(*log.weights) - of(predicted)) <= kWeightsApart * of(predicted)) return;
  log.warnings.push_back(
      fmt::format("weights of {} GiB in the log, {} GiB predicted: the scenario's model, dtype or "
                  "gpu_count differs from the log's",
                  gib(*log.weights), gib(predicted)));
}

}  // namespace

bool is_stated(const std::optional<Bytes>& value) { return value && *value >= Bytes{}; }

std::vector<std::string> unstated_terms(const VllmLog& log) {
  std::vector<std::string> out;
  if (!log.total) out.emplace_back("memory of the GPU");
  if (!log.memory_fraction) out.emplace_back("memory fraction");
  if (!is_stated(log.weights)) out.emplace_back("weights");
  if (!is_stated(log.non_torch)) out.emplace_back("non-torch");
  if (!is_stated(log.activation)) out.emplace_back("activation peak");
  return out;
}

void complete_from_pool(VllmLog& log, const EngineStartup& scenario, const EngineStartup& stated,
                        std::int64_t block_tokens, const std::string& log_place,
                        const std::string& scenario_place) {
  check_weights(log, scenario.weights);
  const auto logged = logged_pool(log, stated, block_tokens, log_place);
  if (!logged || unstated_terms(log).empty()) return;
  if (stated.fraction_of != FractionOf::kAll) {
    throw InputError{
        scenario_place + ": /stack",
        "a stack whose memory fraction is of all memory, such as vLLM, to use the log's KV cache",
        fmt::format("one whose fraction is of \"{}\"", word_of(stated.fraction_of))};
  }
  const bool derives_memory = is_stated(log.activation) && is_stated(log.non_torch);
  // Only weights or the fraction: the scenario's values are used, and there is nothing to derive.
  if (derives_memory && log.total) return;
  const Derived left = what_is_left(log, stated, *logged);
  const std::string account = fmt::format("{} GiB = {}", gib(left.value), left.account);
  if (is_absurd(left, stated)) {
    throw InputError{log_place, "a log of the scenario's start",
                     fmt::format("a log by which the {} is {} (predicted {}): GPU, "
                                 "memory_fraction, model or gpu_count of {} differs from the log's",
                                 left.name, account, gib(left.predicted), scenario_place)};
  }
  log.*left.term = left.value;
  log.notes.push_back(fmt::format("{}: derived, not measured: {}", left.name, account));
  if (is_far(left)) {
    log.warnings.push_back(fmt::format(
        "the {} is {} GiB by the log, predicted {} GiB: check that GPU, memory_fraction, "
        "gpu_count, max_num_seqs and prefill_chunk of the scenario match the log",
        left.name, gib(left.value), gib(left.predicted)));
  }
}

}  // namespace kvsim
