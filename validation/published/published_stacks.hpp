#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "validation/published/published_csv.hpp"

namespace kvsim {

/// The profile that represents a published row's framework.
struct StackMatch {
  const Stack* stack = nullptr;  // if null, `reason` states why
  std::string reason{};
  std::string assumed{};          // assumptions made, for readers; may be empty
  bool eager = false;             // a version without CUDA graphs
  bool offloads_weights = false;  // layers that do not fit stay in host memory
  bool all_logits = false;        // a version that computes logits of all positions, upcast to fp32
};

/// How a method's released code for Hugging Face changes a layer's attention.
enum class AttentionPatch : std::uint8_t {
  kNone,         // works with any attention kernel
  kReadsScores,  // reads attention matrices, which only eager attention provides
  kMasks         // the same, and evicted entries are only masked
};
/// Returns the patch of preset `method` for batches of `batch`. H2O's code that drops entries
/// supports only one sequence; LESS has no code that drops entries (see the profile hf-masked).
[[nodiscard]] AttentionPatch attention_patch(std::string_view method, const MethodNeeds& needs,
                                             std::int64_t batch);

/// Matches patterns of the framework's name and version and of the row's note on the code. `patch`
/// belongs to the row's method. `model_type` is Hugging Face's name of the model family, whose code
/// may differ; empty: unknown.
[[nodiscard]] StackMatch match_stack(const PublishedRow& row, AttentionPatch patch,
                                     std::string_view elsewhere = {},
                                     std::string_view model_type = {});
/// Returns the vLLM release of a row: the version named by its framework, its note or `elsewhere`,
/// else the release of the month named by its framework ("vLLM, Oct 2025"), else the release at the
/// number of its thread; nullopt if none of these is stated.
[[nodiscard]] std::optional<EngineVersion> vllm_release(const PublishedRow& row,
                                                        std::string_view elsewhere = {});
/// Returns the profile of vLLM's V1 engine for that release, or for the nearest known release.
[[nodiscard]] const Stack& vllm_v1_stack(EngineVersion release);
/// Whether `text` names a version of an engine: "vLLM 0.11".
[[nodiscard]] bool names_version(std::string_view text);

/// Whether constants of the profile that affect the figure were taken from the row: their sources
/// have its id in a list "published: to A-007", or, without such a list, the name of
/// the row's document. `of_time`: the figure is a time, not bytes.
[[nodiscard]] bool fitted_on(const Stack& stack, const PublishedRow& row, bool of_time);
/// Whether `id` is in such a list in `text`.
[[nodiscard]] bool names_row(std::string_view text, std::string_view id);

/// Returns the year and month (as 2309) of an arXiv number in `source`; nullopt if there is none.
[[nodiscard]] std::optional<int> arxiv_month(const std::string& source);

}  // namespace kvsim
