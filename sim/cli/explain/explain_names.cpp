// Common names of figures: column names of tables, names in other tools.

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "sim/batch/static_metrics.hpp"
#include "sim/cli/explain/explain_parts.hpp"
#include "sim/replay/replay_metrics.hpp"
#include "sim/serve/account/service_metrics.hpp"

namespace kvsim {
namespace {

/// A figure that is not a metric of a point, or whose names differ from its metric's.
struct OtherName {
  std::string_view key;
  std::string_view of_runs;      // names in tables and other tools, joined by commas
  std::string_view of_services;  // likewise
};
constexpr std::array kOthers{
    OtherName{"step_s",
              "tpot, itl, step, iteration, compute, compute % step, memory % step, overhead, "
              "overhead % step",
              ""},
    OtherName{"oom", "oom at", ""},
    OtherName{"iteration_s", "", "step, iteration"},
    OtherName{
        "bound", "",
        "compute, overhead, kv full, kv full max %, pre, pre empted, preempted, busy, failed"},
};

/// Units and percentiles that tables print under or after a name.
constexpr std::array<std::string_view, 10> kTails{"p50", "p90", "p95", "p99", "mean",
                                                  "s",   "ms",  "%",   "gib", "tokens"};

/// Converts to lower case, and each run of "_", "-" and spaces to one space.
std::string plain_words(std::string_view word) {
  std::string out;
  for (const char c : word) {
    const bool gap = c == '_' || c == '-' || std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!gap) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

/// Whether `list`, such as "ttft, prefill", contains `words`.
bool has_words(std::string_view list, std::string_view words) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(", "), list.size());
    if (list.substr(0, end) == words) return true;
    list.remove_prefix(std::min(end + 2, list.size()));
  }
  return false;
}

/// The metric with the alternative name or column header `words`.
std::string metric_of(const MetricInfos& metrics, std::string_view words,
                      const std::vector<std::string>& keys) {
  for (const MetricInfo* info : metrics) {
    if (has_words(info->aliases, words)) return std::string{info->key};
  }
  for (const MetricInfo* info : metrics) {
    const bool known = std::find(keys.begin(), keys.end(), info->key) != keys.end();
    const auto [place, header, unit, verbose] = info->summary;
    if (known && place > 0 && plain_words(fmt::format("{} {}", header, unit)) == words) {
      return std::string{info->key};
    }
  }
  return {};
}

/// The key that `words` names; empty if there is none.
std::string key_of(const std::string& words, ResultKind kind,
                   const std::vector<std::string>& keys) {
  const MetricInfos services = infos_of(service_metrics());
  for (const std::string& key : keys) {
    // A static batch has the latencies of services under different keys: without a queue, the time
    // to first token is the prefill time and the time between tokens is the step time.
    const MetricInfo* of_services = find_info(services, key);
    const bool other_name = kind == ResultKind::kStatic && of_services != nullptr &&
                            of_services->kind == MetricKind::kLatency && key != "queue_s";
    if (!other_name && plain_words(key) == words) return key;
  }
  for (const OtherName& other : kOthers) {
    const bool serves = kind == ResultKind::kServe;
    if (kind != ResultKind::kStatic && !serves) continue;
    if (has_words(serves ? other.of_services : other.of_runs, words)) return std::string{other.key};
  }
  std::string key;
  if (kind == ResultKind::kServe) key = metric_of(services, words, keys);
  if (kind == ResultKind::kStatic) key = metric_of(infos_of(static_metrics()), words, keys);
  // A run may also contain a replay.
  if (key.empty() && (kind == ResultKind::kReplay || kind == ResultKind::kStatic)) {
    key = metric_of(infos_of(replay_metrics()), words, keys);
  }
  return key;
}

}  // namespace

std::string explained_key(std::string_view word, ResultKind kind,
                          const std::vector<std::string>& keys) {
  if (kind != ResultKind::kStatic && std::find(keys.begin(), keys.end(), word) != keys.end()) {
    return std::string{word};
  }
  std::string words = plain_words(word);
  for (;;) {
    if (std::string key = key_of(words, kind, keys); !key.empty()) return key;
    if (metric_without_terms(word, kind) != nullptr) return std::string{word};
    // "TTFT p50 s": try without the unit, then without the percentile.
    const std::size_t space = words.rfind(' ');
    if (space == std::string::npos) return std::string{word};
    const std::string_view tail = std::string_view{words}.substr(space + 1);
    if (std::find(kTails.begin(), kTails.end(), tail) == kTails.end()) return std::string{word};
    words.erase(space);
  }
}

}  // namespace kvsim
