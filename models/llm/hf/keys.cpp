#include "models/llm/hf/keys.hpp"

#include <fmt/format.h>

namespace kvsim::hf {

std::int32_t count(const Field& value, std::int64_t low, std::int64_t high) {
  return static_cast<std::int32_t>(value.integer(low, high));
}

Field any_of(const Field& config, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (const auto found = config.find(key)) return *found;
  }
  return config.at(*keys.begin());
}

bool flag(const Field& config, std::string_view key, bool otherwise) {
  const auto found = config.find(key);
  return found ? found->boolean() : otherwise;
}

std::int32_t count_or(const Field& config, std::string_view key, std::int64_t otherwise,
                      std::int64_t low, std::int64_t high) {
  const auto found = config.find(key);
  return found ? count(*found, low, high) : static_cast<std::int32_t>(otherwise);
}

double rope_theta(const Field& config, std::initializer_list<std::string_view> keys,
                  double otherwise) {
  constexpr double kLargest = 1e15;
  for (const std::string_view key : keys) {
    if (const auto theta = config.find(key)) return theta->number(1, kLargest);
  }
  // Newer files have it inside rope_parameters; with one set per kind of layer, that of full
  // attention is used.
  if (auto rope = config.find("rope_parameters")) {
    if (const auto full = rope->find("full_attention")) rope = full;
    if (const auto theta = rope->find("rope_theta")) return theta->number(1, kLargest);
  }
  return otherwise;
}

AttentionSpec read_heads(const Field& config, const Field& n_heads, std::int32_t d_model,
                         std::initializer_list<std::string_view> head_dim_keys,
                         std::int64_t head_dim_otherwise) {
  AttentionSpec out;
  out.n_heads = count(n_heads, 1, kMaxHeads);
  for (const std::string_view key : head_dim_keys) {
    if (out.head_dim != 0) break;
    out.head_dim = count_or(config, key, 0, 1, kLargestHead);
  }
  if (out.head_dim == 0) out.head_dim = static_cast<std::int32_t>(head_dim_otherwise);
  if (out.head_dim == 0) {
    if (d_model % out.n_heads != 0) {
      n_heads.fail(fmt::format("{} heads do not divide the width {}, and head_dim is not given",
                               out.n_heads, d_model));
    }
    out.head_dim = d_model / out.n_heads;
  }
  out.v_head_dim = out.head_dim;
  out.n_kv_heads = out.n_heads;
  return out;
}

void set_kv_heads(AttentionSpec& attention, const Field& value) {
  attention.n_kv_heads = count(value, 1, kMaxHeads);
  if (attention.n_heads % attention.n_kv_heads != 0) {
    value.fail(fmt::format("{} cached heads do not divide {} query heads", attention.n_kv_heads,
                           attention.n_heads));
  }
}

}  // namespace kvsim::hf
