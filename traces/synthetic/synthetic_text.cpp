#include "traces/synthetic/synthetic_text.hpp"

#include <cmath>
#include <unordered_map>

#include "traces/synthetic/synthetic_draw.hpp"

namespace kvsim::synthetic {
namespace {

constexpr std::int32_t kBegin = 1, kSeparator = 2, kFirstWord = 3;
constexpr double kVocabulary = 8192;
constexpr double kCopyStarts = 0.02;  // probability per token that a copied span of 8 … 39 begins

}  // namespace

Text draw_text(const GenerateOptions& o) {
  Text text;
  const Draw draw{o.seed, Stream::kTokens, 0, 0, 0};
  std::int64_t source = -1, left = 0;
  std::vector<std::int64_t> copied_from(static_cast<std::size_t>(o.tokens), -1);
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    std::int32_t id = 0;
    std::int64_t origin = t;
    if (t == 0) {
      id = kBegin;
    } else if (o.with_repeat && t >= o.prompt_tokens) {
      origin = t < o.prompt_tokens + 2 ? t : t - o.prompt_tokens - 1;
      id = origin == t ? kSeparator : text.tokens[static_cast<std::size_t>(origin)];
      if (origin != t) copied_from[static_cast<std::size_t>(t)] = origin;
    } else {
      if (left == 0 && t > 16 && draw.uniform(4 * t) < kCopyStarts) {
        left = 8 + static_cast<std::int64_t>(draw.bits(4 * t + 1) % 32);
        source =
            1 + static_cast<std::int64_t>(draw.bits(4 * t + 2) % static_cast<std::uint64_t>(t - 1));
      }
      if (left > 0) {
        --left;
        copied_from[static_cast<std::size_t>(t)] = source;
        id = text.tokens[static_cast<std::size_t>(source++)];
      } else {
        // A log-uniform rank is Zipf's law with exponent 1.
        id = kFirstWord + static_cast<std::int32_t>(std::pow(kVocabulary, draw.uniform(4 * t + 3)));
      }
    }
    text.tokens.push_back(id);
    text.origin.push_back(origin);
  }
  std::unordered_map<std::int32_t, std::int64_t> latest;  // looked up only
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    const auto at = static_cast<std::size_t>(t);
    const auto seen = latest.find(text.tokens[at]);
    if (copied_from[at] >= 0) {
      text.answer.push_back(copied_from[at] + 1);
    } else {
      text.answer.push_back(seen == latest.end() ? -1 : seen->second + 1);
    }
    if (text.answer.back() >= t) text.answer.back() = -1;
    latest[text.tokens[at]] = t;
  }
  return text;
}

}  // namespace kvsim::synthetic
