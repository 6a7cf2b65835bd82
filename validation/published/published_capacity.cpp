#include "validation/published/published_capacity.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <string_view>

#include <fmt/format.h>

#include "models/cost/step.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/method.hpp"
#include "models/methods/resolve/cache_formats.hpp"
#include "models/units/error.hpp"
#include "sim/batch/point/method_by_prompt.hpp"
#include "sim/memory/groups/vllm_groups.hpp"
#include "sim/memory/groups/vllm_packed.hpp"
#include "sim/memory/vllm_startup.hpp"
#include "validation/published/published_stacks.hpp"
#include "validation/published/published_text.hpp"
#include "validation/published/published_weights.hpp"

namespace kvsim {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
/// The first release that prints concurrency times max_model_len as "GPU KV cache size" (PR 42206).
/// Rows that state neither version nor date are assumed to use this release.
constexpr EngineVersion kByConcurrency{0, 22, 0};

/// Thrown for a figure that cannot be predicted, with the reason.
struct NotStated {
  std::string why;
};

/// Returns the whole number at the beginning of `text`, or 0.
std::int64_t leading_number(std::string_view text) {
  std::int64_t out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

/// Returns the whole number of at least 1 after the word `name` in the row's settings, with or
/// without a blank in between ("TP8", "block 64"), or 0. Notes are not read, because they may
/// contain values derived from the figure itself.
std::int64_t stated(std::string_view text, std::string_view name) {
  for (std::size_t at = text.find(name); at != std::string_view::npos;
       at = text.find(name, at + 1)) {
    const bool begins = at == 0 || std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0;
    std::string_view rest = text.substr(at + name.size());
    while (rest.starts_with(' ') || rest.starts_with('=')) rest.remove_prefix(1);
    constexpr std::string_view kAbout = "about ";
    if (rest.starts_with(kAbout)) rest.remove_prefix(kAbout.size());
    if (const std::int64_t number = leading_number(rest); begins && number > 0) return number;
  }
  return 0;
}

/// Returns the first word of a cell without text in brackets: "fp8 (inferred)" is "fp8".
std::string first_word(const std::string& cell) {
  const std::string text = without_brackets(cell);
  return text.substr(0, text.find_first_of(" ,;"));
}

class StartPrediction {
 public:
  StartPrediction(const PublishedRow& row, const PublishedSetup& setup,
                  std::vector<std::string>& assumed)
      : row_{row},
        setup_{setup},
        facts_{setup.facts},
        assumed_{assumed},
        release_{setup.release.value_or(kByConcurrency)} {
    if (!setup.release) assumed_.emplace_back("release not stated: as vLLM 0.22");
    if (has_text(setup.settings, "older log formula") && release_ >= kByConcurrency) {
      release_ = {0, 20, 0};
    }
  }

  double predict();

 private:
  [[nodiscard]] const Llm& llm() const {
    if (setup_.llms.empty()) throw NotStated{*setup_.why_missing("model")};
    return *setup_.llms.front();
  }
  [[nodiscard]] bool counts_by_concurrency() const { return release_ >= kByConcurrency; }
  [[nodiscard]] std::int32_t ranks() const;
  [[nodiscard]] std::int64_t max_model_len() const;
  bool set_head_format(const std::string& word, VllmGroupSettings& settings);
  void set_cache_format(VllmGroupSettings& settings);
  [[nodiscard]] VllmGroupSettings group_settings();
  [[nodiscard]] WeightStore weights() const;
  [[nodiscard]] Stack stack() const;
  [[nodiscard]] EngineStartup startup();
  [[nodiscard]] bool states_memory() const;
  [[nodiscard]] Bytes pool();
  [[nodiscard]] double blocks(const VllmGroups& groups, const VllmGroupSettings& settings);

  const PublishedRow& row_;
  const PublishedSetup& setup_;
  std::shared_ptr<const Method> format_;  // of the row's cache, if it is laid out by heads
  const StartFacts& facts_;
  std::vector<std::string>& assumed_;
  EngineVersion release_;
};

std::int32_t StartPrediction::ranks() const {
  if (const std::int64_t tensor = stated(setup_.settings, "TP"); tensor > 0) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(tensor, 1024));
  }
  std::int64_t gpus = std::clamp<std::int64_t>(leading_number(row_.gpu_count), 1, 1024);
  // GPUs of different replicas and pipeline stages are not in one tensor-parallel group.
  for (const std::string_view other : {"DP", "PP"}) {
    if (const std::int64_t n = stated(setup_.settings, other); n > 0 && gpus % n == 0) gpus /= n;
  }
  return static_cast<std::int32_t>(gpus);
}

std::int64_t StartPrediction::max_model_len() const {
  if (const std::int64_t length = stated(setup_.settings, "max_model_len"); length > 0)
    return length;
  if (setup_.prompt) return setup_.prompt->tokens;
  if (facts_.max_model_len > 0) return facts_.max_model_len;
  if (!setup_.llms.empty()) assumed_.emplace_back("max_model_len not stated: the model's");
  return setup_.llms.empty() ? 0 : setup_.llms.front()->max_positions;
}

/// Sets a format whose rows are laid out by heads, such as "turboquant_4bit_nc"; returns false if
/// `word` is not such a format.
bool StartPrediction::set_head_format(const std::string& word, VllmGroupSettings& settings) {
  if (parse_dtype(word)) return false;
  auto name = find_cache_format(word);
  if (!name) name = find_cache_format(word + "_nc");  // tables leave TurboQuant's suffix out
  if (!name) return false;
  settings.kv_dtype = default_kv_dtype(llm(), llm().published_dtype);
  format_ = make_method({*name, {}, {}}, 1, method_site(llm(), settings.kv_dtype));
  if (!format_->fixed_rows()) return false;
  settings.format = format_.get();
  return true;
}

void StartPrediction::set_cache_format(VllmGroupSettings& settings) {
  const std::string word = first_word(row_.kv_dtype);
  if (set_head_format(word, settings)) return;
  const bool unstated = word.empty() || word == "auto" || word == "not";
  if (unstated) {
    settings.kv_dtype = default_kv_dtype(llm(), llm().published_dtype);
    // On most GPUs vLLM has only the 8-bit layout of compressed entries
    // (models/deepseek_v4/attention.py, _resolve_dsv4_kv_cache_dtype).
    if (has_compressed_layers(llm())) settings.kv_dtype = Dtype::kFp8E4m3;
    assumed_.push_back(fmt::format("cache format not stated: {}", name_of(settings.kv_dtype)));
  } else if (setup_.kv_dtype) {
    settings.kv_dtype = *setup_.kv_dtype;
  } else if (word == "fp8_ds_mla") {
    settings.kv_dtype = Dtype::kFp8E4m3;
  } else {
    throw NotStated{fmt::format("no format in kv_dtype \"{}\"", row_.kv_dtype)};
  }
}

VllmGroupSettings StartPrediction::group_settings() {
  VllmGroupSettings settings{.release = release_};
  set_cache_format(settings);
  settings.max_model_len = max_model_len();
  if (const std::int64_t batched = stated(setup_.settings, "max_num_batched_tokens"); batched > 0) {
    settings.max_num_batched_tokens = batched;
  } else if (setup_.gpu != nullptr && setup_.stack != nullptr) {
    settings.max_num_batched_tokens = stack().prefill_chunk;
  }
  settings.block_tokens = stated(setup_.settings, "block");
  const auto ranks = [&](const char* word) {
    return static_cast<std::int32_t>(std::max<std::int64_t>(1, stated(setup_.settings, word)));
  };
  // Since vLLM PR 46570 (release 0.27), each part of a split prompt holds all entries.
  constexpr EngineVersion kWholeEntries{0, 27, 0};
  settings.context_parallel = ranks("DCP") * (release_ < kWholeEntries ? ranks("PCP") : 1);
  const std::string said = setup_.settings + "; " + row_.model;
  if (!has_text(said, "no draft")) {
    for (const std::string_view word : {"num_speculative_tokens", "MTP", "DSpark", "K"}) {
      if (settings.draft_tokens == 0) settings.draft_tokens = stated(said, word);
    }
  }
  // Gemma's draft layers read the cache of the model's last two layers.
  const bool shares = has_text(row_.model, "gemma");
  settings.draft_layers = settings.draft_tokens > 0 && !shares ? 1 : 0;
  constexpr std::string_view kStates = "mamba_ssm_cache_dtype ";
  if (const std::size_t at = said.find(kStates); at != std::string::npos) {
    settings.state_dtype = parse_dtype(first_word(said.substr(at + kStates.size())));
  }
  const auto says = [&](std::initializer_list<std::string_view> words) {
    return std::any_of(words.begin(), words.end(), [&](auto word) { return has_text(said, word); });
  };
  settings.keeps_states = keeps_states_by_default(release_);
  if (says({"prefix caching"})) settings.keeps_states = true;
  if (says({"prefix caching: default"})) settings.keeps_states = keeps_states_by_default(release_);
  if (says({"prefix caching off", "no prefix caching", "without prefix caching",
            "prefix caching disabled", "no-enable-prefix-caching", "mamba_cache_mode none"})) {
    settings.keeps_states = false;
  }
  return settings;
}

/// Returns the format of the row's weights: that of the published checkpoint if it has the same
/// number of bits, else the format named by the cell.
WeightStore StartPrediction::weights() const {
  std::optional<FormatText> format = setup_.weights;
  if (!format && (has_text(row_.dtype, "4-bit") || has_text(row_.dtype, "int4"))) {
    format = FormatText{.weights = Dtype::kInt4};
  }
  if (!format && has_text(row_.dtype, "awq")) format = FormatText{.weights = Dtype::kInt4};
  const bool unstated = plain_text(without_brackets(row_.dtype)).starts_with("not stated");
  if (!format && !unstated) throw NotStated{fmt::format("no format in dtype \"{}\"", row_.dtype)};
  const Dtype published = llm().published_dtype;
  if (!format) {
    assumed_.push_back("weights not stated: as published");
    return {.base = published, .format = nullptr};
  }
  if (bits_of(format->weights) == bits_of(published)) return {.base = published, .format = nullptr};
  if (has_text(row_.dtype, "nvfp4")) {
    return {.base = wide_dtype(llm(), Dtype::kFp4), .format = &find_weight_format("nvfp4")};
  }
  return match_weights(row_, *format, llm());
}

Stack StartPrediction::stack() const {
  StackOptions options;
  const auto take = [&](auto& field, std::string_view name) {
    if (const std::int64_t number = stated(setup_.settings, name); number > 0) field = number;
  };
  options.max_model_len = max_model_len();
  take(options.max_num_seqs, "max_num_seqs");
  take(options.prefill_chunk, "max_num_batched_tokens");
  options.memory_fraction = setup_.memory_fraction;
  if (setup_.eager_execution) options.cuda_graphs = false;
  return with_options(*setup_.stack, options, {setup_.gpu, &llm(), ranks()});
}

EngineStartup StartPrediction::startup() {
  if (setup_.gpu == nullptr) throw NotStated{"neither the cache memory of this start nor its GPU"};
  if (setup_.stack == nullptr) throw NotStated{*setup_.why_missing("stack")};
  if (setup_.stack->growth != CacheGrowth::kPaged) throw NotStated{"a stack without a pool"};
  const Llm shard = tensor_shard(llm(), ranks());
  const Stack with = stack();
  const auto full = make_method({"full", {}, {}}, 1, {});
  const WeightStore store =
      facts_.weights ? WeightStore{.base = llm().compute_dtype, .format = nullptr} : weights();
  VllmGroupSettings settings;
  set_cache_format(settings);
  const CostInput in{.llm = &shard,
                     .method = settings.format != nullptr ? settings.format : full.get(),
                     .stack = &with,
                     .weight_dtype = store.base,
                     .kv_dtype = settings.kv_dtype,
                     .weight_format = store.format,
                     .tensor_parallel = ranks(),
                     .vocab_size = llm().vocab_size,
                     .measured_weights = facts_.weights};
  for (const std::string& word : setup_.unstated) {
    assumed_.push_back(fmt::format("{} not stated: the engine's default", word));
  }
  return engine_startup(in, setup_.card_memory.value_or(setup_.gpu->hbm_usable), max_model_len());
}

/// Whether the row states all inputs of the memory that a start leaves to the cache.
bool StartPrediction::states_memory() const {
  return setup_.gpu != nullptr && setup_.memory_fraction && setup_.release;
}

/// Returns the cache memory of one GPU: as printed by the start, as defined by its settings, or as
/// predicted.
Bytes StartPrediction::pool() {
  const bool wanted = row_.metric == "available_kv_cache_memory";
  if (facts_.pool && !wanted) return *facts_.pool;
  for (const std::string_view name : {"kv_cache_memory_bytes", "kv_cache_memory"}) {
    if (const std::int64_t bytes = stated(setup_.settings, name); bytes > 0) return Bytes{bytes};
  }
  if (wanted && !states_memory() && (facts_.blocks || facts_.tokens || facts_.concurrency)) {
    // The memory of the blocks according to the figures that it printed.
    const VllmGroupSettings settings = group_settings();
    const VllmGroups groups = vllm_groups(tensor_shard(llm(), ranks()), settings);
    return groups.block_id * std::llround(blocks(groups, settings));
  }
  const EngineStartup start = startup();
  if (start.kv_cache == Bytes{}) throw NotStated{"the predicted start leaves no cache memory"};
  assumed_.push_back(fmt::format("cache memory of the start not stated: predicted {:.2f} GiB",
                                 static_cast<double>(start.kv_cache.count()) / kGiB));
  return start.kv_cache;
}

/// Returns the blocks of the start: from its memory, else from another figure that it printed.
double StartPrediction::blocks(const VllmGroups& groups, const VllmGroupSettings& settings) {
  const auto from = [&](std::string_view figure) {
    assumed_.push_back(fmt::format("predicted from the start's {}, not its memory", figure));
  };
  const auto request = static_cast<double>(groups.request_blocks);
  const bool is_count = is_block_count(row_.metric);
  if (!facts_.pool || row_.metric == "available_kv_cache_memory") {
    if (facts_.blocks && !is_count) {
      from("blocks");
      return static_cast<double>(*facts_.blocks);
    }
    if (facts_.tokens && row_.metric != "gpu_kv_cache_size") {
      from("tokens");
      if (counts_by_concurrency()) {
        return *facts_.tokens * request / static_cast<double>(settings.max_model_len);
      }
      std::int64_t min = groups.block_tokens;
      for (const VllmGroup& group : groups.groups) min = std::min(min, group.block_tokens);
      return *facts_.tokens / static_cast<double>(min * groups.context_parallel) *
             static_cast<double>(groups.groups.size());
    }
    if (facts_.concurrency && row_.metric != "max_concurrency") {
      from("concurrency");
      return *facts_.concurrency * request;
    }
  }
  return std::floor(static_cast<double>(pool().count()) /
                    static_cast<double>(groups.block_id.count()));
}

double StartPrediction::predict() {
  const std::string& metric = row_.metric;
  if (metric == "model_loading") {
    const Llm shard = tensor_shard(llm(), ranks());
    Bytes held = loaded_weight_bytes(shard, weights());
    if (setup_.stack != nullptr) {
      held += vision_weights({.llm = &shard, .stack = setup_.stack, .tensor_parallel = ranks()});
    }
    return static_cast<double>(held.count()) / kGiB;
  }
  if (metric == "available_kv_cache_memory") return static_cast<double>(pool().count()) / kGiB;
  const bool is_vllm = setup_.stack == nullptr || setup_.stack->name.starts_with("vllm");
  if (!is_vllm) {
    if (metric == "gpu_kv_cache_size") return static_cast<double>(startup().tokens);
    if (metric == "max_concurrency") return startup().max_concurrency;
    throw NotStated{fmt::format("no rule for {} of {}", metric, setup_.stack->name)};
  }
  // In these releases one figure is a multiple of the other for every model.
  const auto length = static_cast<double>(max_model_len());
  const bool has_blocks = !setup_.llms.empty() && (facts_.pool || facts_.blocks ||
                                                   stated(setup_.settings, "kv_cache_memory") > 0);
  if (counts_by_concurrency() && !has_blocks && length > 0) {
    if (metric == "max_concurrency" && facts_.tokens) {
      assumed_.emplace_back("predicted from the start's tokens, not its memory");
      return *facts_.tokens / length;
    }
    if (metric == "gpu_kv_cache_size" && facts_.concurrency) {
      assumed_.emplace_back("predicted from the start's concurrency, not its memory");
      return std::floor(*facts_.concurrency * length);
    }
  }
  const Llm shard = tensor_shard(llm(), ranks());
  const VllmGroupSettings settings = group_settings();
  const VllmGroups groups = vllm_groups(shard, settings);
  const double id = static_cast<double>(groups.block_id.count());
  if (metric == "attention_block_size") return static_cast<double>(groups.block_tokens);
  if (metric == "kv_needed_for_one_request") {
    return static_cast<double>(groups.request_blocks) * id / kGiB;
  }
  if (metric == "estimated_max_model_len") {
    return static_cast<double>(
        longest_request(shard, settings, pool().count() / groups.block_id.count()));
  }
  const VllmCapacity capacity = capacity_of_blocks(
      groups, std::llround(std::floor(blocks(groups, settings))), settings.max_model_len);
  if (metric == "max_concurrency") return capacity.concurrency;
  if (metric == "gpu_kv_cache_size") {
    return static_cast<double>(counts_by_concurrency() ? capacity.tokens : capacity.tokens_before);
  }
  return static_cast<double>(capacity.blocks);
}

}  // namespace

std::optional<double> predict_engine_cache(const PublishedRow& row, const PublishedSetup& setup,
                                           std::vector<std::string>& assumed, std::string& why) {
  try {
    return StartPrediction{row, setup, assumed}.predict();
  } catch (const NotStated& refusal) {
    why = refusal.why;
  } catch (const InputError& error) {
    why = error.what();
  }
  return std::nullopt;
}

}  // namespace kvsim
