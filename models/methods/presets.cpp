// The catalogue: axis choices with their parameters, and the published methods as rows over them.
// A new method that composes existing choices is one more row here.

#include "models/methods/presets.hpp"

#include "models/methods/params.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kMany = 1e9;

ParamInfo number(std::string name, std::string symbol, double value, double low, double high,
                 std::string range, std::string help, std::string source,
                 std::vector<std::string> aliases = {}) {
  return {
      std::move(name),   std::move(symbol), value, low, high, {}, std::move(range), std::move(help),
      std::move(source), std::move(aliases)};
}
ParamInfo integer(std::string name, std::string symbol, std::int64_t value, double low, double high,
                  std::string range, std::string help, std::string source,
                  std::vector<std::string> aliases = {}) {
  return {
      std::move(name),   std::move(symbol), value, low, high, {}, std::move(range), std::move(help),
      std::move(source), std::move(aliases)};
}
ParamInfo word(std::string name, std::vector<std::string> words, std::string help,
               std::string source) {
  std::string range = "one of";
  for (std::size_t i = 0; i < words.size(); ++i) range += (i == 0 ? " " : ", ") + words[i];
  const std::string first = words.front();
  return {std::move(name),   "", first, 0, 0, std::move(words), std::move(range), std::move(help),
          std::move(source), {}};
}

std::vector<AxisChoice> make_choices() {
  const ParamInfo positions =
      word("positions", {"original", "rerotate"},
           "RoPE position of a cached key: its own, or its index in the cache",
           "StreamingLLM section 3.2; H2O's streaming variant calls it rolled");
  return {
      {"select", "all", {}},
      {"select",
       "recent",
       {integer("n_sink", "", 4, 0, kMany, "an integer >= 0", "first tokens kept for good",
                "StreamingLLM, released code", {"sinks"}),
        integer("window", "W", 0, 0, kMany, "an integer >= 1, or 0 for what the budget leaves",
                "last tokens kept", "StreamingLLM; 512 in its released class"),
        positions}},
      {"select",
       "accumulated",
       {number("decay", "lambda", 1.0, 1e-6, 1.0, "a number in (0, 1]",
               "factor on scores at each step; 1 is H2O's plain sum", "ZeroMerge eq. (5)",
               {"lambda"}),
        number("heavy", "hh", 0.5, 0, kMany, "a fraction of the budget below 1, or entries",
               "entries kept by score; the rest of the budget is recent", "H2O, released code",
               {"hh"}),
        number("recent", "", -1, -1, kMany,
               "a fraction of the budget below 1, or entries; -1: the rest",
               "last tokens kept whatever their score", "H2O; ZeroMerge's proximity",
               {"proximity", "tail"}),
        integer("sinks", "", 0, 0, kMany, "an integer >= 0", "first tokens kept for good",
                "none in H2O's and ZeroMerge's code"),
        word("eviction_candidates", {"paper", "code"},
             "whether the token that has just left the tail may leave at once (paper) or stays a "
             "step",
             "ZeroMerge alg. 1 against its released code"),
        word("tail_ring", {"paper", "code"},
             "tail after prefill: as set, or one token shorter as the released ring buffer has it",
             "ZeroMerge alg. 1 against its released code"),
        word("score_exec", {"eager", "eager_chunked", "fused_two_pass"},
             "how the prompt's column sums are produced: cost, not result", "stack dependent"),
        positions}},
      {"budget", "none", {}},
      {"budget", "uniform", {}},
      {"merge", "drop", {}},
      {"merge",
       "residual",
       {number("residual_slots", "B_r", 1, 0, kMany,
               "a fraction of budget less tail below 1, or entries; 0 drops",
               "entries set aside for merged tokens", "ZeroMerge eq. (3)"),
        number("alpha", "alpha", 0.6, 1e-6, 1.0, "a number in (0, 1]",
               "weight of ln(count) in a merged entry's logit", "ZeroMerge eq. (8), theorem 3.1"),
        word("metric", {"dot_product", "l2"}, "similarity that chooses the slot",
             "ZeroMerge eq. (6), released code"),
        word("score_update", {"max", "sum"}, "score of a slot after a merge",
             "ZeroMerge, released code"),
        word("prefill", {"chunk_mean", "online"},
             "prompt compressed at once into runs, or fed token by token with its final scores",
             "ZeroMerge's released code against alg. 1"),
        word("layout", {"ring", "indirect"}, "entries rewritten a step: three (ring) or two",
             "ZeroMerge, released code"),
        word("count_dtype", {"int32", "kv"},
             "how counts are stored; in the cache's dtype they stop at 2048 (fp16) or 256 (bf16)",
             "ZeroMerge, released code")}},
      {"share", "none", {}},
      {"read", "all", {}},
      {"store", "recorded", {}},
      {"store", "fp32", {}},
      {"store", "fp16", {}},
      {"store", "bf16", {}},
  };
}

Preset preset(std::string name, std::string summary, std::string paper, const char* select,
              const char* budget, const char* merge, std::string size_law, std::string cost_class,
              Params defaults, double default_budget) {
  Preset row;
  row.info.name = std::move(name);
  row.info.summary = std::move(summary);
  row.info.paper = std::move(paper);
  row.info.axes = {{"select", select}, {"budget", budget}, {"merge", merge},
                   {"share", "none"},  {"read", "all"},    {"store", "recorded"}};
  row.info.size_law = std::move(size_law);
  row.info.cost_class = std::move(cost_class);
  row.defaults = std::move(defaults);
  row.default_budget = default_budget;
  return row;
}

std::vector<Preset> make_presets() {
  const std::string flash = "S0: flash attention untouched";
  const std::string scores = "SF at prefill, SD in decode";
  std::vector<Preset> all{
      preset("full", "keeps every token; what all others are measured against",
             "Vaswani et al. 2017", "all", "none", "drop", "T", flash, {}, 0),
      preset("streaming-llm", "first tokens (attention sinks) and a sliding window",
             "Xiao et al., Efficient Streaming Language Models with Attention Sinks", "recent",
             "uniform", "drop", "min(T, n_sink + window)", flash, {}, 0),
      preset("h2o", "heavy hitters by accumulated attention, and recent tokens",
             "Zhang et al., H2O: Heavy-Hitter Oracle", "accumulated", "uniform", "drop",
             "min(T, heavy + recent)", scores, {}, 0.2),
      preset("zeromerge",
             "decayed heavy hitters; evicted tokens averaged into residual slots (as the released "
             "code "
             "does it)",
             "Liu et al., ZeroMerge", "accumulated", "uniform", "residual", "min(T, B)", scores,
             {{"decay", 0.98},
              {"recent", 0.1},
              {"eviction_candidates", std::string{"code"}},
              {"tail_ring", std::string{"code"}}},
             0.2),
      preset("zeromerge-paper",
             "ZeroMerge as its algorithm 1 is printed: prompt fed token by token",
             "Liu et al., ZeroMerge", "accumulated", "uniform", "residual", "min(T, B)", scores,
             {{"decay", 0.98},
              {"recent", 0.1},
              {"prefill", std::string{"online"}},
              {"layout", std::string{"indirect"}}},
             0.2),
  };
  const ParamInfo granularity =
      word("granularity", {"kv_head", "query_head"},
           "one kept set per KV head, or one per query head with K and V stored for each",
           "released H2O and SnapKV store per query head");
  for (Preset& row : all) {
    for (const AxisChoice& choice : axis_choices()) {
      if (row.info.axes.at(std::string{choice.axis}) != choice.name) continue;
      for (ParamInfo info : choice.params) {
        if (const auto found = row.defaults.find(info.name); found != row.defaults.end()) {
          info.default_value = found->second;
        }
        row.info.params.push_back(std::move(info));
      }
    }
    row.info.params.push_back(granularity);
  }
  return all;
}

}  // namespace

const std::vector<AxisChoice>& axis_choices() {
  static const std::vector<AxisChoice> choices = make_choices();
  return choices;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table = make_presets();
  return table;
}

const std::vector<MethodInfo>& builtin_methods() {
  static const std::vector<MethodInfo> infos = [] {
    std::vector<MethodInfo> all;
    for (const Preset& preset : presets()) all.push_back(preset.info);
    return all;
  }();
  return infos;
}

}  // namespace kvsim
