#pragma once

// How the readers of Hugging Face configurations take single keys. Private to models/llm.

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "models/json/field.hpp"
#include "models/llm/llm.hpp"

namespace kvsim::hf {

// Bounds of what is believed. They keep every count below 2^63 and catch slips of the pen; the
// largest published models stay a factor of 8 below each.
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxHeads = 4096;
inline constexpr std::int64_t kLargestHead = 8192;
inline constexpr std::int64_t kLargestWidth = 1 << 17;
inline constexpr std::int64_t kLargestFfn = 1 << 20;
inline constexpr std::int64_t kMaxExperts = 4096;
inline constexpr std::int64_t kLargestVocabulary = 1 << 24;
inline constexpr std::int64_t kMaxPositions = 1 << 30;
inline constexpr std::int64_t kMaxParameters = 1'000'000'000'000'000;

[[nodiscard]] std::int32_t count(const Field& value, std::int64_t low, std::int64_t high);
/// The same of `config[key]`; `otherwise` where the key is absent or null.
[[nodiscard]] std::int32_t count_or(const Field& config, std::string_view key,
                                    std::int64_t otherwise, std::int64_t low, std::int64_t high);
[[nodiscard]] bool flag(const Field& config, std::string_view key, bool otherwise);
/// The first of `keys` the file has; its first key, as missing, if it has none.
[[nodiscard]] Field any_of(const Field& config, std::initializer_list<std::string_view> keys);

/// Base of the rotary embedding under one of `keys`, or inside `rope_parameters`.
[[nodiscard]] double rope_theta(const Field& config, std::initializer_list<std::string_view> keys,
                                double otherwise);

/// Query heads and head width, common to all families but MLA; as many cached heads as heads. The
/// width is taken from the first of `head_dim_keys` that is given, else `head_dim_otherwise`, and
/// only if that is 0 it is d_model / n_heads.
[[nodiscard]] AttentionSpec read_heads(const Field& config, const Field& n_heads,
                                       std::int32_t d_model,
                                       std::initializer_list<std::string_view> head_dim_keys,
                                       std::int64_t head_dim_otherwise = 0);
/// Cached heads from `value`; they must divide the query heads.
void set_kv_heads(AttentionSpec& attention, const Field& value);

[[nodiscard]] inline std::int64_t q_width(const AttentionSpec& a) {
  return std::int64_t{a.n_heads} * a.head_dim;
}
[[nodiscard]] inline std::int64_t kv_width(const AttentionSpec& a) {
  return std::int64_t{a.n_kv_heads} * a.head_dim;
}

}  // namespace kvsim::hf
