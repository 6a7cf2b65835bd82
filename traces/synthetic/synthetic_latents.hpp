#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "traces/synthetic/synthetic_draw.hpp"
#include "traces/synthetic/synthetic_text.hpp"

namespace kvsim::synthetic {

// Coordinates of a latent row: a constant, a mark on the first token, four kinds of heavy hitters,
// then content in equal parts: the token's own embedding and three drifting contexts, whose
// correlation over n tokens is memory^n.
constexpr std::int64_t kSinkAt = 1, kHeavyAt = 2, kHeavyKinds = 4, kContentAt = 6;
constexpr std::int64_t kBands = 4;
constexpr double kHeavyShare = 0.01;  // of the tokens, for each kind

[[nodiscard]] std::int64_t latent_size(const GenerateOptions& o);

/// Draws [tokens, latent_size]: the latent rows from which a layer's hidden rows are made.
[[nodiscard]] std::vector<float> draw_latents(const GenerateOptions& o, const Text& text,
                                              std::int64_t layer);

/// Returns a random map [latent_size, columns] under which rows of unit latents keep unit root mean
/// square.
[[nodiscard]] std::vector<float> random_map(const GenerateOptions& o, Stream stream,
                                            std::int64_t layer, std::int64_t columns);

/// Computes out[i] = sum of row[j] map[j, i], element by element, so that the result does not
/// depend on vector width.
void apply_map(std::span<const float> row, const std::vector<float>& map, std::span<float> out);

}  // namespace kvsim::synthetic
