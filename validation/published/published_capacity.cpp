#include "validation/published/published_capacity.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "models/llm/weight_format.hpp"
#include "models/units/error.hpp"
#include "sim/memory/vllm_groups.hpp"
#include "validation/published/published_text.hpp"

namespace kvsim {
namespace {

/// The whole number that `text` begins with; 0: none.
std::int64_t leading_number(std::string_view text) {
  std::int64_t out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

/// The whole number of at least 1 that the row's settings have behind the word `name`, with or
/// without a blank between them ("TP8", "block 64"); 0: none. Notes may hold what was worked out
/// from the figure itself, and are not read.
std::int64_t stated(const PublishedRow& row, std::string_view name) {
  const std::string_view text = row.method_params;
  for (std::size_t at = text.find(name); at != std::string_view::npos;
       at = text.find(name, at + 1)) {
    const bool begins = at == 0 || std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0;
    std::string_view rest = text.substr(at + name.size());
    if (rest.starts_with(' ')) rest.remove_prefix(1);
    if (const std::int64_t number = leading_number(rest); begins && number > 0) return number;
  }
  return 0;
}

/// The cache's format: as the cell says, by the names of vLLM's own formats, or the checkpoint's.
std::optional<Dtype> cache_dtype(const PublishedRow& row, const PublishedSetup& setup,
                                 const Llm& llm) {
  if (setup.kv_dtype) return setup.kv_dtype;
  if (row.kv_dtype.starts_with("auto")) return default_kv_dtype(llm, llm.published_dtype);
  if (row.kv_dtype.starts_with("fp8_ds_mla")) return Dtype::kFp8E4m3;
  return std::nullopt;
}

/// Releases that print concurrency times max_model_len as "GPU KV cache size" (vLLM PR 42206, mid
/// 2026); rows without a version are of such a release unless they say that the formula is older.
bool counts_by_concurrency(const PublishedRow& row) {
  if (has_text(row.method_params, "older log formula")) return false;
  constexpr std::string_view kBefore = "vLLM 0.";
  constexpr std::int64_t kFirstMinor = 22;
  const std::size_t at = row.framework.find(kBefore);
  if (at == std::string::npos) return true;
  return leading_number(std::string_view{row.framework}.substr(at + kBefore.size())) >= kFirstMinor;
}

/// Whether states are kept for prefix caching: as the row says, else the default of the release.
bool keeps_states(const PublishedRow& row) {
  if (has_text(row.method_params, "prefix caching on")) return true;
  if (has_text(row.method_params, "prefix caching off")) return false;
  return counts_by_concurrency(row);
}

std::optional<double> predicted_figure(const PublishedRow& row, const PublishedSetup& setup,
                                       const Llm& llm, std::string& why) {
  const auto no = [&](std::string reason) {
    why = std::move(reason);
    return std::nullopt;
  };
  const std::int64_t stated_ranks = stated(row, "TP");
  const auto ranks = static_cast<std::int32_t>(
      stated_ranks > 0 ? stated_ranks
                       : std::clamp<std::int64_t>(leading_number(row.gpu_count), 1, 1024));
  const Llm shard = tensor_shard(llm, ranks);
  if (row.metric == "model_loading") {
    if (!setup.weights) return no(fmt::format("no format in dtype \"{}\"", row.dtype));
    // A checkpoint of as many bits as the published one is that one.
    const bool is_published = bits_of(setup.weights->weights) == bits_of(llm.published_dtype);
    constexpr double kGiB = 1024.0 * 1024 * 1024;
    const Bytes bytes =
        is_published ? published_weight_bytes(shard) : weight_bytes(shard, setup.weights->weights);
    return static_cast<double>(bytes.count()) / kGiB;
  }
  const auto kv_dtype = cache_dtype(row, setup, llm);
  if (!kv_dtype) return no(fmt::format("no format in kv_dtype \"{}\"", row.kv_dtype));
  VllmGroupSettings settings{.kv_dtype = *kv_dtype};
  settings.max_model_len = stated(row, "max_model_len");
  if (settings.max_model_len == 0 && setup.prompt) settings.max_model_len = setup.prompt->tokens;
  if (settings.max_model_len == 0) settings.max_model_len = llm.max_positions;
  if (const std::int64_t batched = stated(row, "max_num_batched_tokens"); batched > 0) {
    settings.max_num_batched_tokens = batched;
  }
  settings.block_tokens = stated(row, "block");
  settings.context_parallel =
      static_cast<std::int32_t>(std::max<std::int64_t>(1, stated(row, "DCP")));
  settings.draft_tokens = stated(row, "MTP");
  settings.draft_layers = settings.draft_tokens > 0 ? 1 : 0;
  settings.keeps_states = keeps_states(row);
  const VllmGroups groups = vllm_groups(shard, settings);
  if (row.metric == "attention_block_size") return static_cast<double>(groups.block_tokens);
  if (!setup.pool) return no("the file does not state the cache memory of this start");
  const VllmCapacity capacity =
      vllm_capacity(groups, *setup.pool, settings.max_model_len, settings.context_parallel);
  if (row.metric == "max_concurrency") return capacity.concurrency;
  if (row.metric == "gpu_kv_cache_size") {
    return static_cast<double>(counts_by_concurrency(row) ? capacity.tokens
                                                          : capacity.tokens_before);
  }
  return static_cast<double>(capacity.blocks);
}

}  // namespace

std::optional<double> predict_engine_cache(const PublishedRow& row, const PublishedSetup& setup,
                                           std::string& why) {
  if (setup.llms.empty()) {
    why = *setup.why_missing("model");
    return std::nullopt;
  }
  try {
    return predicted_figure(row, setup, *setup.llms.front(), why);
  } catch (const InputError& error) {
    why = error.what();
    return std::nullopt;
  }
}

}  // namespace kvsim
