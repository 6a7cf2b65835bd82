#include "validation/published/published_methods.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "validation/published/published_text.hpp"

namespace kvsim {
namespace {

struct MethodName {
  std::string_view pattern;  // of the published name, lower case
  std::string_view preset;
};

/// The first pattern that the name begins with or contains is used; longer patterns come before the
/// patterns they contain.
constexpr std::array kNames{
    MethodName{"minicache", "minicache"},
    MethodName{"zeromerge", "zeromerge"},
    MethodName{"streamingllm", "streaming-llm"},
    MethodName{"streaming-llm", "streaming-llm"},
    MethodName{"pyramidkv", "pyramidkv"},
    MethodName{"snapkv", "snapkv"},
    MethodName{"morphkv", "morphkv"},
    MethodName{"h2o", "h2o"},
    MethodName{"less", "less"},
    MethodName{"keepkv", "keepkv"},
    MethodName{"d2o", "d2o"},
    MethodName{"tova", "tova"},
    MethodName{"scissorhands", "scissorhands"},
    MethodName{"keyformer", "keyformer"},
    MethodName{"knorm", "knorm"},
    MethodName{"keydiff", "keydiff"},
    MethodName{"lagkv", "lagkv"},
    MethodName{"expectedattention", "expected-attention"},
    MethodName{"observedattention", "observed-attention"},
    MethodName{"random", "random"},
    MethodName{"chunkkv", "chunkkv"},
    MethodName{"adakv", "adakv"},
    MethodName{"ada-kv", "adakv"},
    MethodName{"r-kv", "r-kv"},
    MethodName{"duoattention", "duo-attention"},
    MethodName{"duo-attention", "duo-attention"},
    MethodName{"shadowkv", "shadowkv"},
    MethodName{"quest", "quest"},
    MethodName{"kvzip", "kvzip"},
    MethodName{"kvzap", "kvzap"},
    MethodName{"kivi-2", "kivi-2"},
    MethodName{"kivi-4", "kivi-4"},
    MethodName{"quanto", "quanto-4"},
    MethodName{"hqq", "hqq-4"},
    MethodName{"quantizedcache", "quanto-4"},
    MethodName{"quantized cache", "quanto-4"},
    MethodName{"quantised cache", "quanto-4"},
    MethodName{"rtn", "rtn"},
    MethodName{"smoothquant", "smoothquant-kv"},
    MethodName{"gear", "gear"},
    MethodName{"think", "think"},
    MethodName{"int8 kv", "int8"},
    MethodName{"kv8", "int8"},
    MethodName{"kv4", "rtn"},
    MethodName{"int4 kv", "rtn"},
};

/// Other names of a parameter.
struct Synonym {
  std::string_view words;
  std::string_view param;
};
constexpr std::array kSynonyms{
    Synonym{"lambda", "decay"},
    Synonym{"gamma", "retention"},
    Synonym{"t", "interpolation"},
    Synonym{"buffer", "divide_length"},
    Synonym{"sinks", "n_sink"},
    Synonym{"eviction every", "evict_period"},
    Synonym{"first", "full_layers"},
    Synonym{"residual", "residual"},
    Synonym{"residual_length", "residual"},
    Synonym{"nbits", "bits"},
    Synonym{"q_group_size", "quant_group"},
    Synonym{"compression_ratio", "ratio"},
};

/// Numbers with these names are entries per head, or a share of the prompt if below 1.
constexpr std::array<std::string_view, 9> kBudgetWords{
    "budget", "cache ratio",   "ceiling",  "total",     "prompt cache",
    "cache",  "heavy hitters", "per head", "ratio kept"};

const ParamInfo* declared(const std::vector<ParamInfo>& params, std::string_view name) {
  for (const ParamInfo& info : params) {
    if (info.name == name) return &info;
    if (std::find(info.aliases.begin(), info.aliases.end(), name) != info.aliases.end()) {
      return &info;
    }
  }
  return nullptr;
}

void set_param(Params& out, const ParamInfo& info, double value) {
  if (std::holds_alternative<std::int64_t>(info.default_value)) {
    out[info.name] = static_cast<std::int64_t>(std::llround(value));
  } else if (std::holds_alternative<double>(info.default_value)) {
    out[info.name] = value;
  }
}

bool is_full(const std::string& name) {
  for (const std::string_view word : {"full", "mha", "mqa", "gqa", "none", "baseline"}) {
    if (name == word) return true;
  }
  return name.empty();
}

/// Returns the budget in the text, as a share or a number of entries; nullopt if there is none.
std::optional<double> budget_of(const std::string& params) {
  // "10% (819)": the number in brackets is exact.
  const std::vector<TextPart> parts = parts_of(params);
  for (std::size_t i = 0; i + 3 < parts.size() + 1 && i + 2 < parts.size(); ++i) {
    if (parts[i].percent && parts[i + 1].word == "(" && parts[i + 2].number) {
      return parts[i + 2].number;
    }
  }
  for (const std::string_view words : kBudgetWords) {
    if (const auto value = number_at(params, words); value && *value > 0) return value;
  }
  return std::nullopt;
}

}  // namespace

MethodMatch match_method(const std::string& method, const std::string& params,
                         const std::string& note, std::int64_t prompt) {
  MethodMatch out;
  const std::string name = without_brackets(method);
  if (is_full(name)) {
    out.spec = MethodSpec{.name = "full", .params = {}, .budget = {}};
    return out;
  }
  if (has_text(name, "re-computation") || has_text(name, "recomput")) {
    out.spec = MethodSpec{.name = "full", .params = {}, .budget = {}};
    out.recomputes_window = true;
    return out;
  }
  const auto known = std::find_if(kNames.begin(), kNames.end(), [&](const MethodName& entry) {
    return name.find(entry.pattern) != std::string::npos;
  });
  if (known == kNames.end()) {
    out.reason = fmt::format("no method \"{}\" in the catalogue", method);
    return out;
  }
  MethodSpec spec{.name = std::string{known->preset}, .params = {}, .budget = {}};
  // An additional format with fewer bits: "MiniCache-4bit", "… merge + 4bit".
  if (spec.name == "minicache") {
    if (has_text(name, "4bit")) spec.name += "+kivi-4";
    if (has_text(name, "2bit")) spec.name += "+kivi-2";
  }
  MethodInfo info;
  try {
    info = describe_method(spec.name);
  } catch (const InputError& error) {
    out.reason = error.what();
    return out;
  }
  if (spec.name == "quanto-4" && has_text(params, "hqq")) spec.name = "hqq-4";
  if (spec.name == "quanto-4" || spec.name == "hqq-4") {
    for (const std::int64_t bits : {2, 8}) {
      const auto of_bits = [&](std::string_view form) {
        return has_text(name, fmt::format(fmt::runtime(form), bits));
      };
      if (of_bits("int{}") || of_bits("{}bit") || of_bits("{}-bit")) spec.params["bits"] = bits;
    }
  }
  // Parameters by their names, then by synonyms.
  for (const ParamInfo& param : info.params) {
    if (const auto value = number_at(params, param.name)) set_param(spec.params, param, *value);
  }
  for (const Synonym& synonym : kSynonyms) {
    const ParamInfo* param = declared(info.params, synonym.param);
    if (param == nullptr || spec.params.contains(param->name)) continue;
    if (const auto value = number_at(params, synonym.words)) set_param(spec.params, *param, *value);
  }
  if (const auto every = number_at(params, "eviction every");
      every && declared(info.params, "evict_period") != nullptr) {
    set_param(spec.params, *declared(info.params, "evict_period"), *every);
  }
  if (spec.name == "duo-attention") {
    if (const auto retrieval = number_at(params, "retrieval heads")) {
      spec.params["streaming_fraction"] = 1.0 - *retrieval;
    }
  }
  if (spec.name == "streaming-llm") {
    // The released code (modify_llama.py) caches keys unrotated and rotates all at every step.
    spec.params.try_emplace("positions", std::string{"rerotate"});
    out.assumed.push_back("StreamingLLM's released code, which rotates cached keys at every step");
  }
  if (spec.name == "less") {
    // The released maps (LESS, src/example_scripts/train); fitted maps of kvsim are narrower.
    constexpr std::int64_t kReleasedWidth = 512;
    spec.params.try_emplace("hidden", kReleasedWidth);
  }
  if (spec.name == "shadowkv") {
    if (const auto sparse = number_at(params, "sparse budget")) {
      const double entries = *sparse < 1 ? *sparse * static_cast<double>(prompt) : *sparse;
      spec.params["token_budget"] =
          std::max<std::int64_t>(1, static_cast<std::int64_t>(std::llround(entries)));
    }
  } else if (takes_budget(spec.name) && !spec.params.contains("ratio") &&
             !spec.params.contains("total")) {
    if (const auto share = number_at(params, "ratio");
        share && !has_text(params, "cache ratio") && *share < 1) {
      spec.budget = Budget{.fraction = 1 - *share, .entries = 0};  // share removed, as in kvpress
    } else if (const auto budget = budget_of(params)) {
      spec.budget = *budget < 1 ? Budget{.fraction = *budget, .entries = 0}
                                : Budget{.fraction = 0, .entries = std::llround(*budget)};
    } else {
      out.assumed.push_back(fmt::format("{}: no budget is stated, its default", spec.name));
    }
  }
  if ((has_text(note, "query heads") || has_text(params, "all heads")) &&
      declared(info.params, "granularity") != nullptr && !has_text(note, "kv heads")) {
    spec.params["granularity"] = std::string{"query_head"};
  }
  out.spec = std::move(spec);
  return out;
}

std::optional<Baseline> baseline_of(const PublishedRow& row,
                                    const std::optional<MethodSpec>& method) {
  const std::string unit = without_brackets(row.unit);
  const bool peak = has_word(unit, "peak") || has_text(row.note, "peak");
  for (const std::string_view word : {"full", "fp16", "bf16"}) {
    if (has_word(unit, word)) return Baseline{{.name = "full", .params = {}, .budget = {}}, peak};
  }
  std::string name = unit;
  for (const std::string_view lead : {"x vs ", "x ", "% kv vs ", "% kv ", "% vs ", "% "}) {
    if (name.starts_with(lead)) {
      name = name.substr(lead.size());
      break;
    }
  }
  if (name.starts_with("default") && method) {
    return Baseline{{.name = method->name, .params = {}, .budget = method->budget}, peak};
  }
  MethodMatch match = match_method(name, row.method_params, {}, 0);
  if (!match.spec) return std::nullopt;
  return Baseline{std::move(*match.spec), peak};
}

}  // namespace kvsim
