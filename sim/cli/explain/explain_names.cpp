// The words by which people know a figure: column names of tables, names of other tools.

#include <algorithm>
#include <array>
#include <cctype>

#include "sim/cli/explain/explain_parts.hpp"

namespace kvsim {
namespace {

/// A word of a table and the keys that it means; empty: no such metric.
struct FigureName {
  std::string_view word;
  std::string_view run;    // of a static batch
  std::string_view serve;  // of a service
};

constexpr std::array kNames{
    FigureName{"ttft", "prefill_s", "ttft_s"},
    FigureName{"time to first token", "prefill_s", "ttft_s"},
    FigureName{"prefill", "prefill_s", "ttft_s"},
    FigureName{"prefill gib", "prefill_peak_bytes", "peak_hbm_bytes"},
    FigureName{"prefill peak", "prefill_peak_bytes", "peak_hbm_bytes"},
    FigureName{"decode", "decode_tok_s", "output_tok_s"},
    FigureName{"decode tok/s", "decode_tok_s", "output_tok_s"},
    FigureName{"decode gib", "decode_peak_bytes", "peak_hbm_bytes"},
    FigureName{"decode peak", "decode_peak_bytes", "peak_hbm_bytes"},
    FigureName{"tpot", "step_s", "tpot_s"},
    FigureName{"itl", "step_s", "itl_s"},
    FigureName{"step", "step_s", "iteration_s"},
    FigureName{"iteration", "step_s", "iteration_s"},
    FigureName{"compute % ttft", "prefill_s", ""},
    FigureName{"memory % ttft", "prefill_s", ""},
    FigureName{"overhead % ttft", "prefill_s", ""},
    FigureName{"compute", "step_s", "bound"},
    FigureName{"compute % step", "step_s", ""},
    FigureName{"memory % step", "step_s", ""},
    FigureName{"overhead", "step_s", "bound"},
    FigureName{"overhead % step", "step_s", ""},
    FigureName{"e2e", "latency_s", "e2e_s"},
    FigureName{"latency", "latency_s", "e2e_s"},
    FigureName{"queue", "", "queue_s"},
    FigureName{"tok/s", "decode_tok_s", "output_tok_s"},
    FigureName{"output", "decode_tok_s", "output_tok_s"},
    FigureName{"output tok/s", "decode_tok_s", "output_tok_s"},
    FigureName{"throughput", "throughput_tok_s", "output_tok_s"},
    FigureName{"all", "throughput_tok_s", "total_tok_s"},
    FigureName{"all tok/s", "throughput_tok_s", "total_tok_s"},
    FigureName{"done", "", "request_s"},
    FigureName{"done req/s", "", "request_s"},
    FigureName{"req/s", "", "request_s"},
    FigureName{"good", "", "goodput"},
    FigureName{"peak", "peak_hbm_bytes", "peak_hbm_bytes"},
    FigureName{"memory", "peak_hbm_bytes", "peak_hbm_bytes"},
    FigureName{"kv", "kv_bytes", "kv_capacity_tokens"},
    FigureName{"cache", "kv_bytes", "kv_capacity_tokens"},
    FigureName{"oom at", "oom", ""},
    FigureName{"most", "largest_batch", ""},
    FigureName{"most batch", "largest_batch", ""},
    FigureName{"fewest", "fewest_gpus", ""},
    FigureName{"kv full", "", "bound"},
    FigureName{"kv full max %", "", "bound"},
    FigureName{"pre", "", "bound"},
    FigureName{"pre empted", "", "bound"},
    FigureName{"preempted", "", "bound"},
    FigureName{"busy", "", "bound"},
    FigureName{"failed", "", "bound"},
};

struct ReplayName {
  std::string_view word, key;
};
constexpr std::array kReplayNames{
    ReplayName{"entries", "entries_held_final"}, ReplayName{"bytes", "bytes_held_final"},
    ReplayName{"of full", "bytes_held_final"},   ReplayName{"size law", "bytes_held_final"},
    ReplayName{"error", "rel_error_mean"},       ReplayName{"p99", "rel_error_mean"},
};

/// Units and percentiles that tables write under or after a name.
constexpr std::array<std::string_view, 10> kTails{"p50", "p90", "p95", "p99", "mean",
                                                  "s",   "ms",  "%",   "gib", "tokens"};

/// Lower case, one space where the word has "_", "-" or spaces.
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

/// A service's latency, which a static batch has under another key: without a queue, the time to
/// first token is the prefill's and the time between tokens a step's.
bool is_latency(std::string_view key) {
  return key == "ttft_s" || key == "tpot_s" || key == "itl_s" || key == "e2e_s";
}

/// The key that `words` names; empty: none.
std::string key_of(const std::string& words, ResultKind kind,
                   const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    const bool other_name = kind == ResultKind::kStatic && is_latency(key);
    if (!other_name && plain_words(key) == words) return key;
  }
  for (const FigureName& name : kNames) {
    if (name.word != words) continue;
    if (kind == ResultKind::kStatic) return std::string{name.run};
    if (kind == ResultKind::kServe) return std::string{name.serve};
  }
  // A run may hold a replay too.
  if (kind == ResultKind::kReplay || kind == ResultKind::kStatic) {
    for (const ReplayName& name : kReplayNames) {
      if (name.word == words) return std::string{name.key};
    }
  }
  return {};
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
    // "TTFT p50 s": without the unit, then without the percentile.
    const std::size_t space = words.rfind(' ');
    if (space == std::string::npos) return std::string{word};
    const std::string_view tail = std::string_view{words}.substr(space + 1);
    if (std::find(kTails.begin(), kTails.end(), tail) == kTails.end()) return std::string{word};
    words.erase(space);
  }
}

}  // namespace kvsim
