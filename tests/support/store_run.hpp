#pragma once

// A method's store over one head's rows, fed as in decode steps.

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/math/low_int.hpp"
#include "models/methods/composed.hpp"
#include "models/methods/method.hpp"
#include "tests/support/vectors.hpp"

namespace kvsim::test {

/// Rows [n, d] of N(0, 1) in bf16; `outliers`: channels 5, 69 and 100 are multiplied by 8.
inline std::vector<float> normal_rows(std::int64_t n, std::int32_t d, bool outliers,
                                      std::uint64_t seed = 7) {
  std::mt19937_64 random{seed};
  std::normal_distribution<float> normal;
  std::vector<float> rows;
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int32_t j = 0; j < d; ++j) {
      const bool large = outliers && (j == 5 || j == 69 || j == 100);
      rows.push_back(as_stored(normal(random) * (large ? 8.0F : 1.0F), Dtype::kBf16));
    }
  }
  return rows;
}

/// Squared error divided by squares, for rows starting at `first`.
inline double relative_error(const std::vector<float>& found, const std::vector<float>& exact,
                             std::size_t first = 0) {
  double error = 0;
  double sum = 0;
  for (std::size_t i = first; i < exact.size(); ++i) {
    const auto x = static_cast<double>(exact[i]);
    error += (static_cast<double>(found[i]) - x) * (static_cast<double>(found[i]) - x);
    sum += x * x;
  }
  return error / sum;
}

/// A store of layer 4 of 8, without a prompt's scores: `append` is a decode step.
struct StoreRun {
  StoreRun(const std::string& name, Params params, std::int32_t head_dim, std::int32_t tokens,
           Dtype recorded = Dtype::kBf16, const Rope* rope = nullptr)
      : method{make_method({name, std::move(params), {}}, 64,
                           {.recorded = recorded,
                            .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim},
                            .n_layers = 8})},
        d{static_cast<std::size_t>(head_dim)},
        table{head_dim},
        type{recorded} {
    const SessionPlace place{
        .layer = 4, .n_layers = 8, .head_dim = head_dim, .tokens = tokens, .rope = rope};
    store = as_composed(*method).parts().store->start(place, recorded);
  }
  void append(std::span<const float> key, std::span<const float> value) {
    const std::int32_t slot = table.append(table.size(), key, value);
    store->appended(table, slot);
    store->stepped(table);
  }
  /// Rows [n, d] of keys and of values.
  void append_all(const std::vector<float>& keys, const std::vector<float>& values) {
    for (std::size_t at = 0; at < keys.size(); at += d) {
      append(std::span{keys}.subspan(at, d), std::span{values}.subspan(at, d));
    }
  }
  [[nodiscard]] std::vector<float> keys() const {
    return {table.keys().begin(), table.keys().end()};
  }
  [[nodiscard]] std::vector<float> values() const {
    return {table.values().begin(), table.values().end()};
  }
  /// Bytes by the size law, for one KV head.
  [[nodiscard]] std::int64_t law(std::int64_t entries) const {
    return as_composed(*method)
        .parts()
        .store->kv_bytes(entries, entries, static_cast<std::int32_t>(d), type)
        .count();
  }
  [[nodiscard]] std::int64_t held() const { return store->kv_bytes(table).count(); }

  std::shared_ptr<const Method> method;
  std::size_t d;
  EntryTable table;
  Dtype type;
  std::unique_ptr<Store> store;
};

}  // namespace kvsim::test
