#include "sim/scenario/points/labels.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/scenario/fields/method_field.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

struct LabelKey {
  std::string_view key;
  std::string_view before;  // text before the value
};
constexpr std::array kLabelKeys{LabelKey{"model", ""},
                                LabelKey{"gpu", ""},
                                LabelKey{"stack", ""},
                                LabelKey{"calibration", "calibration "},
                                LabelKey{"dtype", ""},
                                LabelKey{"kv_dtype", "cache "},
                                LabelKey{"batch", "batch "},
                                LabelKey{"prompt_tokens", "prompt "},
                                LabelKey{"output_tokens", "output "},
                                LabelKey{"pipeline_parallel", "pipeline "},
                                LabelKey{"replicas", "replicas "},
                                LabelKey{"prefill_replicas", "prefill replicas "},
                                LabelKey{"decode_context_parallel", "context parallel "},
                                LabelKey{"prefill_context_parallel", "prefill context parallel "},
                                LabelKey{"expert_parallel", "expert parallel "},
                                LabelKey{"router", ""},
                                LabelKey{"link", "link "},
                                LabelKey{"compress_before_transfer", "compress before transfer "},
                                LabelKey{"draft", "draft "},
                                LabelKey{"draft_tokens", "proposes "},
                                LabelKey{"acceptance", "acceptance "},
                                LabelKey{"scheduler", ""},
                                LabelKey{"order", ""},
                                LabelKey{"max_num_batched_tokens", "batched tokens "},
                                LabelKey{"max_num_seqs", "seqs "},
                                LabelKey{"long_prefill_token_threshold", "long prefill "},
                                LabelKey{"chunked_prefill", "chunked prefill "},
                                LabelKey{"prefix_caching", "prefix caching "},
                                LabelKey{"reserve_full_isl", "reserve full ISL "},
                                LabelKey{"watermark", "watermark "},
                                LabelKey{"swap", "swap "},
                                LabelKey{"policy", ""},
                                LabelKey{"conservativeness", "conservativeness "},
                                LabelKey{"max_prefill_tokens", "prefill tokens "},
                                LabelKey{"mixed_chunk", "mixed chunk "},
                                LabelKey{"workload", ""},
                                LabelKey{"rate", "rate "},
                                LabelKey{"rate_scale", "rate x "},
                                LabelKey{"users", "users "},
                                LabelKey{"cv", "cv "},
                                LabelKey{"limit", "limit "},
                                LabelKey{"prompt_scale", "prompts x "},
                                LabelKey{"output_scale", "outputs x "},
                                LabelKey{"memory", ""},
                                LabelKey{"measured_on", "measured on "}};

const std::vector<std::string> kMethodKeys{"method", "budget", "method_params"};

/// Whether a label always contains `key` if it differs, even if other keys suffice.
bool is_named(std::string_view key) {
  constexpr std::array<std::string_view, 7> kNamed{"method", "budget", "method_params", "model",
                                                   "gpu",    "stack",  "dtype"};
  return std::find(kNamed.begin(), kNamed.end(), key) != kNamed.end();
}

/// Returns the number of distinct objects when only `keys` are compared.
std::size_t kinds(const std::vector<ordered_json>& objects, const std::vector<std::string>& keys) {
  std::set<std::string> seen;
  for (const ordered_json& object : objects) {
    std::string text;
    for (const std::string& key : keys) {
      const auto found = object.find(key);
      if (found != object.end()) {
        text += found->dump(-1, ' ', false, ordered_json::error_handler_t::replace);
      }
      text += '\n';
    }
    seen.insert(std::move(text));
  }
  return seen.size();
}

/// "70B", "8192"; for an object "hbm 160 GiB usable hbm 150 GiB".
std::string key_value_text(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return value.dump();
  std::vector<std::string> words;
  for (const auto& [key, part] : value.items()) {
    if (part.is_null()) continue;
    std::string word = key;
    std::replace(word.begin(), word.end(), '_', ' ');
    words.push_back(word + " " + key_value_text(part));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace

std::string DistinctNames::add(const std::string& name) {
  std::string out = name;
  int& number = last_.try_emplace(name, 1).first->second;
  while (!taken_.insert(out).second) {
    out = fmt::format("{}{}{}{}", name, before_, ++number, after_);
  }
  return out;
}

std::vector<std::string> distinguishing_keys(const std::vector<ordered_json>& objects,
                                             const std::vector<std::string>& keys) {
  std::vector<std::string> chosen;
  for (const std::string& key : keys) {
    if (is_named(key) && kinds(objects, {key}) > 1) chosen.push_back(key);
  }
  const std::size_t all = kinds(objects, keys);
  for (std::size_t n_kinds = kinds(objects, chosen); n_kinds < all;) {
    std::string best;
    for (const std::string& key : keys) {
      std::vector<std::string> with = chosen;
      with.push_back(key);
      if (const std::size_t n = kinds(objects, with); n > n_kinds) {
        n_kinds = n;
        best = key;
      }
    }
    // Two keys together may distinguish points that neither distinguishes separately: start with
    // any that differs.
    for (auto key = keys.begin(); best.empty() && key != keys.end(); ++key) {
      const bool fresh = std::find(chosen.begin(), chosen.end(), *key) == chosen.end();
      if (fresh && kinds(objects, {*key}) > 1) best = *key;
    }
    chosen.push_back(best);
  }
  std::vector<std::string> ordered;
  for (const std::string& key : keys) {
    if (std::find(chosen.begin(), chosen.end(), key) != chosen.end()) ordered.push_back(key);
  }
  return ordered;
}

void set_labels(std::vector<ScenarioPoint>& points) {
  std::vector<ordered_json> objects;
  objects.reserve(points.size());
  for (const ScenarioPoint& point : points) objects.push_back(point.keys);
  std::vector<std::string> keys = kMethodKeys;
  for (const LabelKey& key : kLabelKeys) keys.emplace_back(key.key);
  const std::vector<std::string> distinguishing = distinguishing_keys(objects, keys);
  const auto distinguishes = [&](std::string_view key) {
    return std::find(distinguishing.begin(), distinguishing.end(), key) != distinguishing.end();
  };
  const bool method =
      distinguishing.empty() || std::any_of(kMethodKeys.begin(), kMethodKeys.end(), distinguishes);
  DistinctNames names;
  for (ScenarioPoint& point : points) {
    std::vector<std::string> words;
    if (method) words.push_back(method_label(point.method));
    for (const LabelKey& key : kLabelKeys) {
      const auto value = point.keys.find(key.key);
      if (!distinguishes(key.key) || value == point.keys.end()) continue;
      if (const std::string word = key_value_text(*value); !word.empty()) {
        words.push_back(fmt::format("{}{}", key.before, word));
      }
    }
    if (words.empty()) words.push_back(method_label(point.method));
    point.label = names.add(fmt::format("{}", fmt::join(words, ", ")));
  }
}

}  // namespace kvsim
