#pragma once

// Heads with merges, recorded heads, and runs of a method over them.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/support/reference/reference_merging.hpp"
#include "tests/support/session_run.hpp"
#include "traces/trace.hpp"

namespace kvsim::test {

inline std::filesystem::path sample() {
  return std::filesystem::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors";
}

struct MethodRun : SessionRun {
  MethodRun(const std::string& name, const HeadVectors& vectors, std::optional<std::int64_t> budget,
            Params params = {}, Dtype recorded = Dtype::kFp32)
      : SessionRun{
            make_method(
                {name, std::move(params),
                 budget ? std::optional{Budget{0, *budget}} : std::nullopt},
                vectors.prompt,
                {.recorded = recorded,
                 .shape = {.n_heads = vectors.group, .n_kv_heads = 1, .head_dim = vectors.head_dim},
                 .windows = {},
                 .n_layers = 1}),
            vectors} {}
};

/// Keys in clusters: every third is close to an earlier one, so that merges happen.
inline OwnedHead clustered_head(std::int32_t group, std::int32_t d, std::int64_t tokens,
                                std::int64_t prompt, std::uint64_t seed, double noise = 0.2) {
  OwnedHead head = random_head(group, d, tokens, prompt, seed);
  Normal normal{seed + 99};
  const auto width = static_cast<std::size_t>(d);
  for (std::size_t t = 5; t < static_cast<std::size_t>(tokens); ++t) {
    if (t % 3 == 0) continue;
    const std::size_t like = (t * 7) % 5;
    for (std::size_t j = 0; j < width; ++j) {
      head.keys[t * width + j] =
          static_cast<float>(static_cast<double>(head.keys[like * width + j]) + noise * normal());
    }
  }
  return head;
}

inline void check_same_cache(const EntryTable& entries, const ReferenceCache& cache,
                             double tolerance) {
  REQUIRE(entries.size() == std::ssize(cache));
  double worst = 0;
  for (const auto& [id, entry] : cache) {
    const std::int32_t slot = entries.slot_of(id);
    REQUIRE(slot >= 0);
    for (std::size_t j = 0; j < entry.key.size(); ++j) {
      worst = std::max(worst, std::abs(entry.key[j] - static_cast<double>(entries.key(slot)[j])));
      worst =
          std::max(worst, std::abs(entry.value[j] - static_cast<double>(entries.value(slot)[j])));
    }
  }
  CHECK(worst < tolerance);
}

/// The recorded heads of the sample trace, one per layer.
inline std::vector<OwnedHead> real_heads() {
  const Trace trace = Trace::open(sample());
  const TraceInfo& info = trace.info();
  std::vector<OwnedHead> heads;
  for (std::int32_t layer = 0; layer < info.n_layers; ++layer) {
    const TraceLayer rows = trace.read_layer(layer);
    const std::int32_t group = info.n_heads / info.n_kv_heads;
    const auto row = info.tokens * info.head_dim;
    const std::int64_t h = layer % info.n_kv_heads;
    OwnedHead& head = heads.emplace_back();
    const auto part = [&](const std::vector<float>& all, std::int64_t first, std::int64_t n) {
      return std::vector<float>(all.begin() + first * row, all.begin() + (first + n) * row);
    };
    head.q = part(rows.q, h * group, group);
    head.keys = part(rows.k, h, 1);
    head.values = part(rows.v, h, 1);
    head.view = {.q = head.q,
                 .keys = head.keys,
                 .values = head.values,
                 .group = group,
                 .head_dim = info.head_dim,
                 .tokens = info.tokens,
                 .prompt = info.prompt_tokens,
                 .scale = info.softmax_scale};
  }
  return heads;
}

inline double distance(const Vec& a, const Vec& b) {
  double sum = 0;
  for (std::size_t j = 0; j < a.size(); ++j) sum += (a[j] - b[j]) * (a[j] - b[j]);
  return std::sqrt(sum);
}

}  // namespace kvsim::test
