#pragma once

// Single keys of Hugging Face configurations. Private to models/llm.

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "models/json/field.hpp"
#include "models/llm/llm.hpp"

namespace kvsim::hf {

// Upper bounds of accepted values. They keep every count below 2^63 and catch typing errors; the
// largest published models are a factor of 8 below each.
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
/// The same for `config[key]`; returns `otherwise` if the key is absent or null.
[[nodiscard]] std::int32_t count_or(const Field& config, std::string_view key,
                                    std::int64_t otherwise, std::int64_t low, std::int64_t high);
[[nodiscard]] bool flag(const Field& config, std::string_view key, bool otherwise);
/// Returns the first of `keys` in the file; if it has none, the first key, as missing.
[[nodiscard]] Field any_of(const Field& config, std::initializer_list<std::string_view> keys);

/// Returns the base of the rotary embedding under one of `keys`, or inside `rope_parameters`.
[[nodiscard]] double rope_theta(const Field& config, std::initializer_list<std::string_view> keys,
                                double otherwise);

/// Reads query heads and head width, common to all families except MLA; the number of KV heads
/// is set to that of query heads. The width is the first given one of `head_dim_keys`, else
/// `head_dim_otherwise`, and d_model / n_heads only if that is 0.
[[nodiscard]] AttentionSpec read_heads(const Field& config, const Field& n_heads,
                                       std::int32_t d_model,
                                       std::initializer_list<std::string_view> head_dim_keys,
                                       std::int64_t head_dim_otherwise = 0);
/// Sets the KV heads from `value`; they must divide the query heads.
void set_kv_heads(AttentionSpec& attention, const Field& value);

[[nodiscard]] inline std::int64_t q_width(const AttentionSpec& a) {
  return std::int64_t{a.n_heads} * a.head_dim;
}
[[nodiscard]] inline std::int64_t kv_width(const AttentionSpec& a) {
  return std::int64_t{a.n_kv_heads} * a.head_dim;
}

}  // namespace kvsim::hf
