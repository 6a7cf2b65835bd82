#include "validation/served/served_speculation.hpp"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/serve/serve_spec.hpp"
#include "validation/served/served_settings.hpp"
#include "validation/served/served_tables.hpp"

namespace kvsim {
namespace {

/// All options as "name=value " in lower case, without the punctuation of JSON, so that
/// {"method":"mtp"} becomes method=mtp.
std::string plain_text(std::span<const EngineOption> options) {
  std::string text;
  for (const EngineOption& option : options) {
    for (const char c : option.name + "=" + option.value) {
      if (c == '"' || c == '{' || c == '}' || c == '\'') continue;
      if (c == ' ' && text.ends_with('=')) continue;
      if (c == ':') {
        text += '=';
      } else if (c == '/' || c == ',' || c == '.') {
        text += ' ';
      } else {
        text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
    }
    text += ' ';
  }
  return text;
}

std::optional<std::int64_t> first_number(std::string_view text,
                                         std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const auto n = number_behind(text, name)) return n;
  }
  return std::nullopt;
}

Proposer proposer_in(std::string_view text, std::span<const EngineOption> options) {
  const auto has = [&](std::string_view word) { return text.find(word) != std::string_view::npos; };
  if (has("eagle3") || has("eagle-3")) return Proposer::kEagle3;
  if (has("mtp") || has("nextn")) return Proposer::kMtp;
  if (has("=eagle")) {
    // SGLang also uses this name for a model's built-in head.
    const bool has_head = std::any_of(options.begin(), options.end(), [](const EngineOption& o) {
      return o.name == "speculative_draft_model_path" || o.name == "speculative_config";
    });
    return has_head ? Proposer::kEagle : Proposer::kMtp;
  }
  if (has("ngram")) return Proposer::kNgram;
  return Proposer::kModel;
}

}  // namespace

nlohmann::ordered_json served_speculation(std::span<const EngineOption> options,
                                          std::vector<std::string>& assumed) {
  const std::string text = plain_text(options);
  const Proposer proposer = proposer_in(text, options);
  const auto steps = first_number(text, {"speculative_num_steps"});
  const auto topk = first_number(text, {"speculative_eagle_topk"}).value_or(1);
  const ServedAcceptance* acceptance = find_served_acceptance(word_of(proposer));
  if (acceptance == nullptr) {
    throw NotExpressed{"speculative decoding whose acceptance is not known"};
  }
  auto tokens =
      first_number(text, {"num_speculative_tokens", "max_draft_len", "num_nextn_predict_layers"});
  if (const auto rows = first_number(text, {"speculative_num_draft_tokens"})) {
    tokens = *rows - 1;  // one is the last accepted token
  }
  if (!tokens) tokens = steps;
  if (!tokens || *tokens < 1) {
    throw NotExpressed{"speculative decoding without a number of tokens"};
  }
  assumed.push_back(fmt::format("acceptance {:g} of each proposed token: {}",
                                acceptance->acceptance, acceptance->source));
  nlohmann::ordered_json out{{"draft", word_of(proposer)}, {"tokens", *tokens}};
  if (steps && *steps < *tokens) out["steps"] = *steps;
  if (topk > 1) out["topk"] = topk;
  out["acceptance"] = acceptance->acceptance;
  return out;
}

}  // namespace kvsim
