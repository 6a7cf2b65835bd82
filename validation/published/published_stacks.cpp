#include "validation/published/published_stacks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "validation/published/published_text.hpp"

namespace kvsim {
namespace {

/// Matches if the framework's name, or the framework and note together, contain all words of `all`.
struct Pattern {
  std::vector<std::string_view> all;
  std::string_view stack;  // empty: known, but without a profile
  std::string_view why{};  // reason for an empty stack; else the assumption
};

/// The first match is used; specific patterns come before general ones.
const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> table{
      {{"standard attention"}, "torch-standard"},
      {{"cudnn"}, "torch-static"},
      {{"flashattention-"}, "torch-static"},
      {{"tensorrt-llm"}, "trtllm"},
      {{"trt-llm"}, "trtllm"},
      {{"nim"}, "trtllm"},
      {{"vllm/"}, "", "two systems under one name"},
      {{"vllm"}, "vllm"},
      {{"aphrodite"}, "vllm"},
      {{"sglang"}, "sglang"},
      {{"lmdeploy"}, "lmdeploy"},
      {{"turbomind"}, "lmdeploy"},
      {{"eager", "static"}, "gpt-fast-eager"},
      {{"gpt-fast", "eager"}, "gpt-fast-eager"},
      {{"gpt-fast"}, "gpt-fast"},
      {{"tgi"}, "vllm-v0", "TGI has no profile: as vLLM, whose kernels it has"},
      {{"text-generation-inference"},
       "vllm-v0",
       "TGI has no profile: as vLLM, whose kernels it has"},
      {{"qserve"}, "trtllm", "QServe has no profile: as TensorRT-LLM"},
      {{"atom"}, "trtllm", "Atom has no profile: as TensorRT-LLM"},
      {{"quarot"}, "trtllm", "QuaRot has no profile: as TensorRT-LLM"},
      {{"zero-inference"}, "zero-inference"},
      {{"accelerate"}, "hf-sdpa", "layers that do not fit stay in host memory, copied when needed"},
      {{"flexgen"}, "flexgen"},
      {{"flexllmgen"}, "flexgen"},
      {{"legacy", "cache"}, "hf-legacy"},
      {{"static", "torch.compile"}, "gpt-fast"},
      {{"staticcache"}, "torch-static"},
      {{"pre-allocated"}, "torch-static"},
      {{"static kv"}, "torch-static"},
      {{"eager"}, "hf-eager"},
      {{"hf", "sdpa"}, "hf-sdpa"},
      {{"hf", "flash"}, "hf-flash"},
      {{"hf", "fa2"}, "hf-flash"},
      {{"hf", "fa 2"}, "hf-flash"},
      {{"hf", "fa3"}, "hf-flash"},
      {{"transformers", "sdpa"}, "hf-sdpa"},
      {{"transformers", "flash"}, "hf-flash"},
      {{"kvpress"}, "hf-flash"},
      {{"hf"}, "hf-sdpa"},
      {{"huggingface"}, "hf-sdpa"},
      {{"hugging face"}, "hf-sdpa"},
      {{"transformers"}, "hf-sdpa"},
      {{"pytorch", "flash"}, "torch-static"},
  };
  return table;
}

/// The version "0.6.3" as 0.006003 after `name`; nullopt if there is none.
std::optional<double> version_after(std::string_view text, std::string_view name) {
  const std::string all = plain_text(text);
  auto at = all.find(name);
  for (; at != std::string::npos; at = all.find(name, at + 1)) {
    std::size_t end = at + name.size();
    while (end < all.size() && (all[end] == ' ' || all[end] == '=' || all[end] == 'v')) ++end;
    double version = 0;
    double weight = 1;
    std::size_t digits = 0;
    int parts = 0;
    while (end < all.size() && parts < 3) {
      double part = 0;
      std::size_t of_part = 0;
      while (end < all.size() && all[end] >= '0' && all[end] <= '9') {
        part = part * 10 + (all[end++] - '0');
        ++of_part;
      }
      if (of_part == 0) break;
      version += part * weight;
      weight /= 1000;
      digits += of_part;
      ++parts;
      if (end >= all.size() || all[end] != '.') break;
      ++end;
    }
    if (digits > 0 && parts >= 2) return version;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int> arxiv_month(const std::string& source) {
  const std::string text = plain_text(source);
  const auto at = text.find("arxiv");
  if (at == std::string::npos) return std::nullopt;
  for (const TextPart& part : parts_of(std::string_view{text}.substr(at + 5))) {
    if (!part.number) continue;
    const int month = static_cast<int>(*part.number);
    return month > 700 && month < 9913 && month % 100 >= 1 && month % 100 <= 12
               ? std::optional{month}
               : std::nullopt;
  }
  return std::nullopt;
}

namespace {

const Stack* stack_of(std::string_view name) {
  for (const Stack& stack : builtin_stacks()) {
    if (stack.name == name) return &stack;
  }
  return nullptr;
}

/// vLLM's engines: V1 became the default with 0.8 (March 2025, about pull request 13,700).
std::string_view vllm_engine(const PublishedRow& row, std::string_view elsewhere,
                             std::string& assumed) {
  constexpr double kV1 = 0.008;
  constexpr double kV1Thread = 13700;
  if (has_word(row.framework, "v0")) return "vllm-v0";
  if (has_word(row.framework, "v1")) return "vllm";
  for (const std::string* text : {&row.framework, &row.note}) {
    if (const auto version = version_after(*text, "vllm")) {
      return *version < kV1 ? "vllm-v0" : "vllm";
    }
    if (const auto year = number_at(without_brackets(*text), "vllm"); year && *year > 2000) {
      return *year < 2025 ? "vllm-v0" : "vllm";
    }
  }
  for (const TextPart& part : parts_of(row.framework)) {
    if (part.number && *part.number > 2000 && *part.number < 2100) {
      return *part.number < 2025 ? "vllm-v0" : "vllm";
    }
  }
  if (has_text(row.source, "vllm-project/vllm")) {
    for (const std::string_view kind : {"pr", "issue"}) {
      if (const auto thread = number_at(row.source, kind)) {
        return *thread < kV1Thread ? "vllm-v0" : "vllm";
      }
    }
  }
  if (const auto version = version_after(elsewhere, "vllm")) {
    return *version < kV1 ? "vllm-v0" : "vllm";
  }
  assumed = "vLLM without a version: its engine before 0.8";
  return "vllm-v0";
}

/// vLLM's pull requests that changed defaults, with their releases: a thread with a higher number
/// is about that release or a later one.
struct DefaultsChange {
  double thread;
  std::string_view release;
};
constexpr std::array kDefaultsChanges{
    DefaultsChange{0, "0.2"},       DefaultsChange{6666, "0.5.3"},  DefaultsChange{10544, "0.6.5"},
    DefaultsChange{16158, "0.8.4"}, DefaultsChange{17073, "0.8.5"}, DefaultsChange{17885, "0.9"},
    DefaultsChange{38284, "0.20"},  DefaultsChange{42206, "0.22"},  DefaultsChange{44443, "0.25"},
    DefaultsChange{51726, "0.28"},  DefaultsChange{53183, "0.29"}};
/// The newest release for most of a month: from vLLM's tags, and since April 2026 from the releases
/// of the pull requests of these months.
struct MonthOfRelease {
  int month;  // 2510 is October 2025
  std::string_view release;
};
constexpr std::array kMonths{
    MonthOfRelease{2503, "0.8"},  MonthOfRelease{2505, "0.8.5"}, MonthOfRelease{2506, "0.9"},
    MonthOfRelease{2508, "0.10"}, MonthOfRelease{2510, "0.11"},  MonthOfRelease{2512, "0.12"},
    MonthOfRelease{2601, "0.14"}, MonthOfRelease{2602, "0.16"},  MonthOfRelease{2603, "0.18"},
    MonthOfRelease{2604, "0.19"}, MonthOfRelease{2605, "0.21"},  MonthOfRelease{2606, "0.23"},
    MonthOfRelease{2607, "0.25"}, MonthOfRelease{2608, "0.27"},  MonthOfRelease{2609, "0.29"}};

/// "Oct 2025", "October 2025" or "2025-10-19" in `text` as 2510.
std::optional<int> month_in(std::string_view text) {
  constexpr std::array<std::string_view, 12> kNames{"jan", "feb", "mar", "apr", "may", "jun",
                                                    "jul", "aug", "sep", "oct", "nov", "dec"};
  const std::string all = plain_text(text);
  for (std::size_t at = all.find("20"); at != std::string::npos; at = all.find("20", at + 1)) {
    const auto year = number_of(std::string_view{all}.substr(at, 4));
    if (!year || *year < 2023 || *year > 2099 || *year != std::floor(*year)) continue;
    const int years = (static_cast<int>(*year) - 2000) * 100;
    if (all.size() >= at + 7 && all[at + 4] == '-') {
      const auto month = number_of(std::string_view{all}.substr(at + 5, 2));
      if (month && *month >= 1 && *month <= 12) return years + static_cast<int>(*month);
    }
    const std::string before = all.substr(0, at);
    for (std::size_t month = 0; month < kNames.size(); ++month) {
      if (has_text(before, kNames[month])) return years + static_cast<int>(month) + 1;
    }
  }
  return std::nullopt;
}

/// Converts a version returned by version_after to a label: 0.006003 is "0.6.3".
std::string version_text(double version) {
  const auto parts = static_cast<std::int64_t>(std::llround(version * 1e6));
  return fmt::format("{}.{}.{}", parts / 1'000'000, parts / 1000 % 1000, parts % 1000);
}

/// Returns `stack` in the version that the row names, clamped to the versions of the profile; else,
/// for a thread of vLLM's repository, in the release at its number; else in the newest known
/// version.
const Stack* in_version(const Stack* stack, const PublishedRow& row, std::string_view elsewhere) {
  if (stack == nullptr || !stack->defaults) return stack;
  const EngineDefaults& defaults = *stack->defaults;
  std::vector<std::string> names{plain_text(defaults.engine)};
  if (names.front() == "tensorrt-llm") names.emplace_back("trt-llm");
  std::string release;
  for (const std::string_view text :
       {std::string_view{row.framework}, std::string_view{row.note}, elsewhere}) {
    for (const std::string& name : names) {
      const auto version = release.empty() ? version_after(text, name) : std::nullopt;
      if (version) release = version_text(*version);
    }
  }
  if (release.empty() && has_text(row.source, "vllm-project/vllm")) {
    for (const std::string_view kind : {"pr", "issue"}) {
      const auto thread = number_at(row.source, kind);
      for (const DefaultsChange& change : kDefaultsChanges) {
        if (thread && *thread > change.thread) release = change.release;
      }
    }
  }
  const auto version = release.empty() ? std::nullopt : parse_engine_version(release);
  if (!version) return stack;
  if (*version < defaults.first_version) release = defaults.first;
  if (*version >= defaults.first_version && !defaults.knows(*version)) return stack;
  return &find_stack(stack->name + "@" + release);
}

/// Whether torch.cat of the row's PyTorch uses vectorized loads of 16-bit rows: since 2.8 (August
/// 2025). Papers without a release are assumed to use it since November 2025.
bool loads_vectors(const PublishedRow& row, std::string_view elsewhere, std::string& assumed) {
  constexpr double kVectors = 2.008;
  constexpr int kMonth = 2511;
  for (const std::string_view text :
       {std::string_view{row.framework}, std::string_view{row.note}, elsewhere}) {
    if (const auto version = version_after(text, "torch")) return *version >= kVectors;
  }
  const auto month = arxiv_month(row.source);
  if (!month || *month < kMonth) return false;
  if (!assumed.empty()) assumed += "; ";
  assumed +=
      "PyTorch's release is not stated: 2.8 or later; before it torch.cat takes 1.66 times as long";
  return true;
}

}  // namespace

std::optional<EngineVersion> vllm_release(const PublishedRow& row, std::string_view elsewhere) {
  for (const std::string_view text :
       {std::string_view{row.framework}, std::string_view{row.note}, elsewhere}) {
    if (const auto version = version_after(text, "vllm")) {
      return parse_engine_version(version_text(*version));
    }
  }
  if (const auto month = month_in(row.framework)) {
    std::string_view release = kMonths.front().release;
    for (const MonthOfRelease& one : kMonths) {
      if (*month >= one.month) release = one.release;
    }
    return parse_engine_version(release);
  }
  if (has_text(row.source, "vllm-project/vllm")) {
    for (const std::string_view kind : {"pr", "issue"}) {
      const auto thread = number_at(row.source, kind);
      if (!thread) continue;
      std::string_view release = kDefaultsChanges.front().release;
      for (const DefaultsChange& change : kDefaultsChanges) {
        if (*thread > change.thread) release = change.release;
      }
      return parse_engine_version(release);
    }
  }
  return std::nullopt;
}

const Stack& vllm_v1_stack(EngineVersion release) {
  const Stack& newest = find_stack("vllm");
  KVSIM_CHECK(newest.defaults, "a vLLM profile without defaults by release");
  const EngineDefaults& defaults = *newest.defaults;
  if (release < defaults.first_version) return find_stack("vllm@" + defaults.first);
  if (!defaults.knows(release)) return newest;
  return find_stack(fmt::format("vllm@{}.{}.{}", release[0], release[1], release[2]));
}

bool names_version(std::string_view text) { return version_after(text, "vllm").has_value(); }

AttentionPatch attention_patch(std::string_view method, const MethodNeeds& needs,
                               std::int64_t batch) {
  // A method that computes scores itself, in chunks if necessary, runs with fused attention.
  if (needs.prompt_scores != PromptScoreClass::kColumnSums || needs.retries_smaller_chunks) {
    return AttentionPatch::kNone;
  }
  const bool masks = method == "less" || (method == "h2o" && batch > 1);
  return masks ? AttentionPatch::kMasks : AttentionPatch::kReadsScores;
}

StackMatch match_stack(const PublishedRow& row, AttentionPatch patch, std::string_view elsewhere,
                       std::string_view model_type) {
  const std::string name = plain_text(row.framework);
  if (name.empty()) {
    return {.stack = nullptr, .reason = "no framework is stated"};
  }
  if (has_text(row.note, "offload level cpu") || has_text(row.note, "offload level disk")) {
    return {.stack = nullptr,
            .reason = "the cache is in host memory, or weights on disk: no profile does that"};
  }
  for (const Pattern& pattern : patterns()) {
    const bool fits = std::all_of(pattern.all.begin(), pattern.all.end(), [&](std::string_view w) {
      return name.find(w) != std::string::npos;
    });
    if (!fits) continue;
    if (pattern.stack.empty()) return {.stack = nullptr, .reason = std::string{pattern.why}};
    StackMatch match;
    match.assumed = std::string{pattern.why};
    std::string_view wanted = pattern.stack;
    match.offloads_weights = pattern.all.front() == "accelerate";
    if (wanted == "vllm") {
      // CUDA graphs came with 0.2.6 (December 2023).
      constexpr double kGraphs = 0.002006;
      const auto version = version_after(name, "vllm");
      match.eager = (version && *version < kGraphs) || has_text(name, "2023");
    }
    if (wanted == "vllm") wanted = vllm_engine(row, elsewhere, match.assumed);
    // DynamicCache came with transformers 4.36; before it the cache was a tuple grown by torch.cat.
    constexpr double kDynamicCache = 4.036;
    constexpr int kDynamicCacheMonth = 2312;  // December 2023
    constexpr double kLastLogits = 4.045;     // num_logits_to_keep
    if (wanted.starts_with("hf-") && wanted != "hf-legacy") {
      const auto version = version_after(name, "transformers");
      const auto month = arxiv_month(row.source);
      const bool old_paper = !version && month && *month < kDynamicCacheMonth;
      if ((version && *version < kDynamicCache) || (old_paper && wanted == "hf-sdpa")) {
        wanted = "hf-legacy";
        if (old_paper) match.assumed = "a paper of before transformers 4.36: its tuple caches";
      }
      match.all_logits = version && *version < kLastLogits;
      // Qwen2's code repeated KV heads before flash attention up to 4.47.
      constexpr double kGroupedQwen2 = 4.048;
      if (wanted == "hf-flash" && model_type == "qwen2" && (!version || *version < kGroupedQwen2)) {
        wanted = "hf-flash-repeat";
      }
      // "transformers 4.51.3 + FA 2.7.4" lists packages: since 4.48 the library runs SDPA unless
      // another implementation is requested, written as "FA2" or "flash_attention_2".
      const bool listed = name.find("+ fa ") != std::string::npos;
      if (wanted == "hf-flash" && listed && version && *version >= kGroupedQwen2) {
        wanted = "hf-sdpa";
        match.assumed =
            "FlashAttention is a package listed: PyTorch's scaled_dot_product_attention";
      }
      const bool eager_or_not_said =
          wanted == "hf-sdpa" || wanted == "hf-eager" || wanted == "hf-legacy";
      if (patch == AttentionPatch::kMasks && eager_or_not_said) {
        wanted = "hf-masked";
        match.assumed = "the method's released code, which masks what it evicts";
      } else if (patch != AttentionPatch::kNone && wanted == "hf-sdpa") {
        wanted = "hf-eager";
        match.assumed = "attention scores are read: eager attention";
      } else if (wanted == "hf-sdpa" && !listed && name.find("sdpa") == std::string::npos) {
        match.assumed = "attention not stated: PyTorch's scaled_dot_product_attention";
      }
    }
    if (wanted == "hf-sdpa" || wanted == "hf-flash") {
      const bool vectors = loads_vectors(row, elsewhere, match.assumed);
      if (vectors) wanted = wanted == "hf-sdpa" ? "hf-sdpa-torch28" : "hf-flash-torch28";
    }
    match.stack = in_version(stack_of(wanted), row, elsewhere);
    if (match.stack == nullptr) {
      match.reason = fmt::format("no profile of the stack {} yet", wanted);
    }
    return match;
  }
  return {.stack = nullptr,
          .reason = fmt::format("no profile of the framework \"{}\"", row.framework)};
}

bool names_row(std::string_view text, std::string_view id) {
  /// "qw-115" is "qw-" and 115.
  const auto split = [](std::string_view name) -> std::pair<std::string_view, double> {
    const auto digits = name.find_last_not_of("0123456789");
    if (digits == std::string_view::npos || digits + 1 == name.size()) return {name, -1};
    return {name.substr(0, digits + 1), *number_of(name.substr(digits + 1))};
  };
  const std::string all = plain_text(text);
  const std::string wanted = plain_text(id);
  const auto [prefix, number] = split(wanted);
  constexpr std::string_view kMark = "published:";
  for (auto at = all.find(kMark); at != std::string::npos; at = all.find(kMark, at + 1)) {
    const std::size_t begin = at + kMark.size();
    const std::size_t end = std::min(all.find(')', begin), all.size());
    // Ids contain hyphens: words are separated by blanks and commas.
    std::vector<std::string> words(1);
    for (const char c : std::string_view{all}.substr(begin, end - begin)) {
      if (c != ' ' && c != ',' && c != ';') {
        words.back() += c;
      } else if (!words.back().empty()) {
        words.emplace_back();
      }
    }
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] == wanted) return true;
      if (i + 2 >= words.size() || words[i + 1] != "to") continue;
      const auto low = split(words[i]);
      const auto high = split(words[i + 2]);
      if (low.first == prefix && high.first == prefix && number >= low.second &&
          number <= high.second) {
        return true;
      }
    }
  }
  return false;
}

bool fitted_on(const Stack& stack, const PublishedRow& row, bool of_time) {
  // Keys that affect bytes; all others affect time.
  constexpr std::array<std::string_view, 16> kOfBytes{
      "growth",       "rounds_allocations", "keeps_inputs",  "context",          "usable_fraction",
      "logits",       "logits_fp32",        "sampler_bytes", "graphs",           "communication",
      "block_tokens", "prefill_chunk",      "max_num_seqs",  "full_causal_mask", "fraction_of",
      "loads_vision"};
  // "github NVIDIA/kvpress notebooks/…" is identified by its repository, a paper by its first word,
  // or by its full name if that word is common.
  const std::string plain = plain_text(row.source);
  std::string token;
  if (plain.starts_with("github ")) {
    const auto end = plain.find(' ', 7);
    token = plain.substr(7, end == std::string::npos ? std::string::npos : end - 7);
  } else {
    const auto end = plain.find(' ');
    token = plain.substr(0, end);
  }
  if (token.size() < 3) token = plain;
  return std::any_of(stack.sources.begin(), stack.sources.end(), [&](const auto& entry) {
    const bool of_bytes =
        std::find(kOfBytes.begin(), kOfBytes.end(), entry.first) != kOfBytes.end();
    if (of_bytes == of_time) return false;
    const std::string text = plain_text(entry.second);
    if (text.find("published:") != std::string::npos) return names_row(text, row.id);
    if (text.find(token) != std::string::npos) return true;
    // "Qwen2.5 speed benchmark" is QwenLM/Qwen2.5.
    const auto slash = token.find('/');
    return slash != std::string::npos && token.size() - slash > 5 &&
           has_word(text, std::string_view{token}.substr(slash + 1));
  });
}

}  // namespace kvsim
