#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "validation/published/published_csv.hpp"

namespace kvsim {

/// The profile that a published row's framework runs as.
struct StackMatch {
  const Stack* stack = nullptr;  // null: none, and `reason` says why
  std::string reason{};
  std::string assumed{};          // what had to be taken for granted, for people; empty: nothing
  bool eager = false;             // a version without CUDA graphs
  bool offloads_weights = false;  // layers that do not fit stay in host memory
  bool all_logits = false;        // a version that computes logits of all positions, upcast to fp32
};

/// What a method's released code for Hugging Face does to a layer's attention.
enum class AttentionPatch : std::uint8_t {
  kNone,         // it runs with any attention kernel
  kReadsScores,  // it reads attention matrices, which only eager attention provides
  kMasks         // the same, and what it evicts it only masks
};
/// Of the preset `method` for batches of `batch`. H2O's code that drops entries runs only one
/// sequence; LESS has no such code (see the profile hf-masked).
[[nodiscard]] AttentionPatch attention_patch(std::string_view method, const MethodNeeds& needs,
                                             std::int64_t batch);

/// By patterns of the name, versions and the row's note on the code. `patch`: of the row's method.
/// `model_type`: Hugging Face's word for the model's family, whose code may differ; empty: unknown.
[[nodiscard]] StackMatch match_stack(const PublishedRow& row, AttentionPatch patch,
                                     std::string_view elsewhere = {},
                                     std::string_view model_type = {});
/// The vLLM release of a row: the version that its framework, its note or `elsewhere` names, else
/// that of the month which its framework names ("vLLM, Oct 2025"), else that of the number of its
/// thread; nullopt: none of these is stated.
[[nodiscard]] std::optional<EngineVersion> vllm_release(const PublishedRow& row,
                                                        std::string_view elsewhere = {});
/// The profile of vLLM's V1 engine in that release, or in the nearest that it knows.
[[nodiscard]] const Stack& vllm_v1_stack(EngineVersion release);
/// Whether `text` names a version of an engine: "vLLM 0.11".
[[nodiscard]] bool names_version(std::string_view text);

/// Whether constants of the profile that bear on the figure were taken from the row: its id is in a
/// list "published: to A-007" among their sources, or, where a source gives no such
/// list, the name of the row's document. `of_time`: the figure is a time, not bytes.
[[nodiscard]] bool fitted_on(const Stack& stack, const PublishedRow& row, bool of_time);
/// Whether `id` is in such a list of `text`.
[[nodiscard]] bool names_row(std::string_view text, std::string_view id);

/// The year and month (as 2309) that an arXiv number in `source` names; nullopt without one.
[[nodiscard]] std::optional<int> arxiv_month(const std::string& source);

}  // namespace kvsim
