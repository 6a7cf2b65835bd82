#include "traces/generate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "models/math/lanes.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

// ---- Random numbers: a hash of what they are for, so order of use does not matter ----

enum class Stream : std::uint64_t {
  kTokens = 1,
  kEmbedding,
  kContext,
  kHeavy,
  kKeyMap,
  kValueMap,
  kHiddenMap,
  kProfile,
  kQuery,
  kOutput,
  kScore
};

std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64 (Steele, Lea, Flood 2014)
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

/// Numbers of one (seed, stream, layer, head, token), by index.
class Draw {
 public:
  Draw(std::uint64_t seed, Stream stream, std::int64_t layer, std::int64_t head,
       std::int64_t token) {
    key_ = mix(seed);
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(stream), static_cast<std::uint64_t>(layer),
          static_cast<std::uint64_t>(head), static_cast<std::uint64_t>(token)}) {
      key_ = mix(key_ ^ mix(part));
    }
  }
  [[nodiscard]] std::uint64_t bits(std::int64_t i) const {
    return mix(key_ + static_cast<std::uint64_t>(i) * 0xD1B54A32D192ED03ULL);
  }
  /// In [0, 1).
  [[nodiscard]] double uniform(std::int64_t i) const {
    return static_cast<double>(bits(i) >> 11U) * 0x1p-53;
  }
  /// Mean 0, variance 1, |x| < 3.5: four uniform 16-bit numbers summed (Irwin-Hall), in integers,
  /// so that no mathematics library has a say in it.
  [[nodiscard]] float normal(std::int64_t i) const {
    const std::uint64_t x = bits(i);
    const auto sum = static_cast<std::int32_t>((x & 0xFFFFU) + ((x >> 16U) & 0xFFFFU) +
                                               ((x >> 32U) & 0xFFFFU) + (x >> 48U));
    constexpr float kToUnit = 1.7320508F / 65536.0F;
    return static_cast<float>(sum - 131070) * kToUnit;
  }

 private:
  std::uint64_t key_ = 0;
};

// ---- Options ----

void require(bool holds, std::string_view option, std::string_view range, std::string_view got) {
  if (!holds) throw InputError{option, range, got};
}

void require_range(std::string_view option, std::int64_t value, std::int64_t low,
                   std::int64_t high) {
  require(value >= low && value <= high, option, fmt::format("an integer in [{}, {}]", low, high),
          fmt::format("{}", value));
}

constexpr std::int64_t kSmallestModel = 16;

GenerateOptions checked(GenerateOptions o) {
  require_range("layers", o.layers, 1, 1024);
  require_range("heads", o.heads, 1, 1024);
  require_range("kv_heads", o.kv_heads, 1, 1024);
  require(o.heads % o.kv_heads == 0, "heads",
          fmt::format("a multiple of kv_heads ({})", o.kv_heads), fmt::format("{}", o.heads));
  require_range("head_dim", o.head_dim, 8, 1024);
  require(o.head_dim % 2 == 0, "head_dim", "an even integer", fmt::format("{}", o.head_dim));
  require_range("tokens", o.tokens, 2, 1 << 20);
  require_range("prompt_tokens", o.prompt_tokens, 1, o.tokens - 1);
  if (o.d_model == 0) {
    o.d_model = static_cast<std::int32_t>(
        std::max<std::int64_t>(std::int64_t{o.heads} * o.head_dim, kSmallestModel));
  }
  require_range("d_model", o.d_model, kSmallestModel, 1 << 20);
  require(o.dtype == Dtype::kFp32 || o.dtype == Dtype::kFp16 || o.dtype == Dtype::kBf16, "dtype",
          "fp32, fp16 or bf16", name_of(o.dtype));
  require(o.rope_theta > 1 && o.rope_theta <= 1e9, "rope_theta", "a number in (1, 1e9]",
          fmt::format("{}", o.rope_theta));
  if (o.with_repeat) {
    require(o.prompt_tokens >= 2, "prompt_tokens", "an integer >= 2 with a repeat",
            fmt::format("{}", o.prompt_tokens));
    require(o.tokens == 2 * o.prompt_tokens + 1, "tokens",
            fmt::format("{} (2 * prompt_tokens + 1) with a repeat", 2 * o.prompt_tokens + 1),
            fmt::format("{}", o.tokens));
  }
  return o;
}

// ---- The text: token ids, and where each query finds what followed its token before ----

constexpr std::int32_t kBegin = 1, kSeparator = 2, kFirstWord = 3;
constexpr double kVocabulary = 8192;
constexpr double kCopyStarts = 0.02;  // chance per token that a copied span of 8 … 39 begins

struct Text {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> origin;  // whose context a token repeats; itself elsewhere
  std::vector<std::int64_t> answer;  // what an induction query at t looks for; -1 if nothing
};

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

// ---- Latents: what a layer's hidden rows are made of ----

// Coordinates of a latent row: a constant, a mark on the first token, four kinds of heavy hitters,
// then content in equal parts: the token's own embedding and three drifting contexts, whose
// correlation over n tokens is memory^n.
constexpr std::int64_t kSinkAt = 1, kHeavyAt = 2, kHeavyKinds = 4, kContentAt = 6;
constexpr std::int64_t kBands = 4;
constexpr std::array kMemory{0.0F, 0.6F, 0.9F, 0.97F};              // band 0 is the embedding
constexpr std::array kFresh{1.0F, 0.8F, 0.43588989F, 0.24310492F};  // sqrt(1 - memory^2)
constexpr double kHeavyShare = 0.01;                                // of the tokens, for each kind
constexpr std::int64_t kContentLimit = 96;

std::int64_t latent_size(const GenerateOptions& o) {
  return kContentAt +
         std::min<std::int64_t>(kContentLimit, o.d_model - kContentAt) / kBands * kBands;
}

/// [tokens, latent_size]
std::vector<float> draw_latents(const GenerateOptions& o, const Text& text, std::int64_t layer) {
  const std::int64_t m = latent_size(o), band = (m - kContentAt) / kBands;
  std::vector<float> rows(static_cast<std::size_t>(o.tokens * m));
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    float* row = rows.data() + t * m;
    const std::int64_t origin = text.origin[static_cast<std::size_t>(t)];
    if (origin != t) {  // a repeat has the hidden rows of what it repeats
      std::copy_n(rows.data() + origin * m, m, row);
      continue;
    }
    row[0] = 1;
    if (t == 0) row[kSinkAt] = 1;
    const Draw heavy{o.seed, Stream::kHeavy, layer, 0, t};
    for (std::int64_t kind = 0; kind < kHeavyKinds && t > 0; ++kind) {
      if (heavy.uniform(2 * kind) < kHeavyShare) {
        row[kHeavyAt + kind] = 1 + 0.25F * heavy.normal(2 * kind + 1);
      }
    }
    const Draw embedding{o.seed, Stream::kEmbedding, 0, 0,
                         text.tokens[static_cast<std::size_t>(t)]};
    const Draw context{o.seed, Stream::kContext, layer, 0, t};
    for (std::int64_t j = 0; j < m - kContentAt; ++j) {
      const auto b = static_cast<std::size_t>(j / band);
      float* at = row + kContentAt + j;
      if (b == 0) {
        *at = embedding.normal(j);
      } else {
        *at = t == 0 ? context.normal(j) : kMemory[b] * at[-m] + kFresh[b] * context.normal(j);
      }
    }
  }
  // The first token says little: its key is the sink's, its value small, as in trained models.
  for (std::int64_t j = kContentAt; j < m; ++j) rows[static_cast<std::size_t>(j)] *= 0.2F;
  return rows;
}

/// out[i] = sum of row[j] map[j, i], element by element, so that vector width does not matter.
void apply_map(std::span<const float> row, const std::vector<float>& map, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0F);
  for (std::size_t j = 0; j < row.size(); ++j) {
    const float x = row[j];
    if (x == 0) continue;
    const float* from = map.data() + j * out.size();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += x * from[i];
  }
}

// ---- Heads ----

/// cos and sin of a position's angles, and where the pairs lie.
class Rotation {
 public:
  Rotation(const GenerateOptions& o) : pairs_{o.head_dim / 2}, theta_{o.rope_theta} {
    half_split_ = o.rope_style == RopeStyle::kHalfSplit;
    cos_.resize(static_cast<std::size_t>(pairs_));
    sin_.resize(static_cast<std::size_t>(pairs_));
  }
  [[nodiscard]] double frequency(std::int64_t pair) const {
    return std::pow(theta_, -2.0 * static_cast<double>(pair) / static_cast<double>(2 * pairs_));
  }
  [[nodiscard]] std::int64_t first(std::int64_t pair) const {
    return half_split_ ? pair : 2 * pair;
  }
  [[nodiscard]] std::int64_t second(std::int64_t pair) const {
    return half_split_ ? pair + pairs_ : 2 * pair + 1;
  }
  void stand_at(std::int64_t position) {
    for (std::int64_t j = 0; j < pairs_; ++j) {
      const double angle = static_cast<double>(position) * frequency(j);
      cos_[static_cast<std::size_t>(j)] = std::cos(angle);
      sin_[static_cast<std::size_t>(j)] = std::sin(angle);
    }
  }
  void turn(float* row) const {
    for (std::int64_t j = 0; j < pairs_; ++j) {
      const double c = cos_[static_cast<std::size_t>(j)], s = sin_[static_cast<std::size_t>(j)];
      const auto x = static_cast<double>(row[first(j)]), y = static_cast<double>(row[second(j)]);
      row[first(j)] = static_cast<float>(x * c - y * s);
      row[second(j)] = static_cast<float>(x * s + y * c);
    }
  }

 private:
  std::int64_t pairs_;
  double theta_;
  bool half_split_ = true;
  std::vector<double> cos_, sin_;
};

/// Unit directions before RoPE on which a query finds the sink and the heavy hitters: in the
/// slowest pairs, turned by half the trace's length so that the agreement is best in the middle.
struct Attractors {
  std::vector<float> sink_key, heavy_key, sink_query, heavy_query;  // [head_dim]
};

Attractors attractors_of(const GenerateOptions& o, const Rotation& rope) {
  const auto d = static_cast<std::size_t>(o.head_dim);
  Attractors a;
  for (auto* v : {&a.sink_key, &a.heavy_key, &a.sink_query, &a.heavy_query}) v->resize(d);
  const std::int64_t slowest = o.head_dim / 2 - 1;
  const auto put = [&](std::vector<float>& v, std::int64_t pair, double angle) {
    v[static_cast<std::size_t>(rope.first(pair))] = static_cast<float>(std::cos(angle));
    v[static_cast<std::size_t>(rope.second(pair))] = static_cast<float>(std::sin(angle));
  };
  const auto lead = [&](std::int64_t pair) {
    return std::min(1.0, 0.5 * rope.frequency(pair) * static_cast<double>(o.tokens));
  };
  // A query at distance n past the key has turned by n * frequency; the lead takes half of it back.
  put(a.sink_key, slowest, 0);
  put(a.sink_query, slowest, -lead(slowest));
  const bool shared = o.head_dim < 16;  // too few slow pairs: the quarter turn of the same one
  const std::int64_t second = shared ? slowest : slowest - 1;
  const double quarter = shared ? 1.5707963267948966 : 0.0;
  put(a.heavy_key, second, quarter);
  put(a.heavy_query, second, quarter - lead(second));
  return a;
}

/// What a query head gives to each way of looking, as shares of its attention mass.
struct Profile {
  double sink = 0, local = 0, heavy = 0, induction = 0, flat = 0;
};

Profile draw_profile(const GenerateOptions& o, std::int64_t layer, std::int64_t head) {
  const Draw draw{o.seed, Stream::kProfile, layer, head, 0};
  constexpr std::array kKinds{
      Profile{0.55, 0.15, 0.10, 0.08, 0.12},  // sink
      Profile{0.10, 0.65, 0.07, 0.06, 0.12},  // local
      Profile{0.15, 0.12, 0.50, 0.08, 0.15},  // heavy hitters
      Profile{0.15, 0.15, 0.10, 0.48, 0.12},  // induction
      Profile{0.10, 0.20, 0.15, 0.10, 0.45},  // broad
  };
  constexpr std::array kUpTo{0.38, 0.64, 0.80, 0.94, 1.0};
  // Kinds are dealt round, from a random start, so that even a few heads hold several.
  constexpr double kStep = 0.6180339887498949;
  const double start = Draw{o.seed, Stream::kProfile, layer, -1, 0}.uniform(0);
  const double x = start + kStep * static_cast<double>(head);
  const double pick = x - std::floor(x);
  std::size_t kind = 0;
  while (kind + 1 < kKinds.size() && pick >= kUpTo[kind]) ++kind;
  Profile p = kKinds[kind];
  std::int64_t i = 0;
  double sum = 0;
  for (double Profile::*share :
       {&Profile::sink, &Profile::local, &Profile::heavy, &Profile::induction, &Profile::flat}) {
    p.*share *= std::exp(0.3 * static_cast<double>(draw.normal(i++)));
    sum += p.*share;
  }
  for (double Profile::*share :
       {&Profile::sink, &Profile::local, &Profile::heavy, &Profile::induction, &Profile::flat}) {
    p.*share /= sum;
  }
  // First layers look around before sinks have formed (Xiao et al. 2023, fig. 2).
  if (layer == 0 && o.layers > 1) p.sink *= 0.1;
  return p;
}

/// The logit that gives `share` of the mass to `count` tokens against `flat` spread over all.
double logit_for(double share, double count, double flat, double tokens) {
  return std::max(0.0, std::log(share * tokens / (flat * count)));
}

struct Gains {
  double sink = 0, local = 0, heavy = 0, induction = 0;
};

Gains gains_of(const GenerateOptions& o, std::int64_t layer, std::int64_t head) {
  const Profile p = draw_profile(o, layer, head);
  const auto tokens = static_cast<double>(o.tokens);
  constexpr double kLocalTokens = 4;  // near neighbours that share a query's context
  return {.sink = logit_for(p.sink, 1, p.flat, tokens),
          .local = logit_for(p.local, std::min(kLocalTokens, tokens), p.flat, tokens),
          .heavy = logit_for(p.heavy, std::max(1.0, 2 * kHeavyShare * tokens), p.flat, tokens),
          .induction = logit_for(p.induction, 1, p.flat, tokens)};
}

constexpr float kSinkKey = 1.5F, kHeavyKey = 1.5F;  // over the length of an ordinary key

/// Keys before RoPE as a map of latents: [latent_size, kv_heads * head_dim].
std::vector<float> key_map(const GenerateOptions& o, const Attractors& attractors,
                           std::int64_t layer) {
  const std::int64_t m = latent_size(o), d = o.head_dim, band = (m - kContentAt) / kBands;
  std::vector<float> map(static_cast<std::size_t>(m * o.kv_heads * d));
  const float length = std::sqrt(static_cast<float>(d));
  const float unit = 1.0F / std::sqrt(static_cast<float>(m - kContentAt));
  for (std::int64_t head = 0; head < o.kv_heads; ++head) {
    const Draw shape{o.seed, Stream::kProfile, layer, head, -1};
    // Which bands a head's keys carry; energies that sum to 4, an ordinary key's length to sqrt(d).
    std::array<float, kBands> energy{};
    float sum = 0;
    for (std::size_t b = 0; b < energy.size(); ++b) {
      energy[b] = 0.3F + static_cast<float>(shape.uniform(static_cast<std::int64_t>(b)));
      sum += energy[b];
    }
    for (std::int64_t row = 0; row < m; ++row) {
      float* to = map.data() + (row * o.kv_heads + head) * d;
      const Draw draw{o.seed, Stream::kKeyMap, layer, head, row};
      for (std::int64_t j = 0; j < d; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const float slow = attractors.sink_query[at] != 0 || attractors.sink_key[at] != 0 ||
                                   attractors.heavy_query[at] != 0
                               ? 0.3F  // content stays out of the attractors' way
                               : 1.0F;
        if (row == 0) {
          to[j] = 0.1F * slow * draw.normal(j);
        } else if (row == kSinkAt) {
          to[j] = kSinkKey * length * attractors.sink_key[at];
        } else if (row < kContentAt) {
          // Every head knows two of the four kinds.
          const bool knows = (row - kHeavyAt + head) % 2 == 0;
          to[j] = knows ? kHeavyKey * length * attractors.heavy_key[at] : 0.0F;
        } else {
          const auto b = static_cast<std::size_t>((row - kContentAt) / band);
          to[j] = std::sqrt(kBands * energy[b] / sum) * unit * slow * draw.normal(j);
        }
      }
    }
  }
  return map;
}

/// A random map [latent_size, columns] under which rows of unit latents keep unit root mean square.
std::vector<float> random_map(const GenerateOptions& o, Stream stream, std::int64_t layer,
                              std::int64_t columns) {
  const std::int64_t m = latent_size(o);
  std::vector<float> map(static_cast<std::size_t>(m * columns));
  const float unit = 1.0F / std::sqrt(static_cast<float>(m - kContentAt));
  for (std::int64_t row = 0; row < m; ++row) {
    const Draw draw{o.seed, stream, layer, 0, row};
    for (std::int64_t i = 0; i < columns; ++i) {
      map[static_cast<std::size_t>(row * columns + i)] = unit * draw.normal(i);
    }
  }
  return map;
}

float dot(const float* a, const float* b, std::int64_t n) {
  lanes::F4 sum{};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    lanes::F4 x, y;
    std::memcpy(&x, a + i, sizeof x);
    std::memcpy(&y, b + i, sizeof y);
    sum += x * y;
  }
  float total = (sum[0] + sum[2]) + (sum[1] + sum[3]);
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

/// One layer, token-major as the file has it.
struct Layer {
  std::vector<float> q, k, v;     // [tokens, heads or kv_heads, head_dim]
  std::vector<float> key_cosine;  // [tokens, kv_heads]: of k before RoPE with the token before
  std::vector<float> key_square;  // [tokens, kv_heads]: |k|^2
};

void fill_keys(const GenerateOptions& o, const std::vector<float>& latents,
               const Attractors& attractors, std::int64_t layer, Rotation& rope, Layer& out) {
  const std::int64_t m = latent_size(o), d = o.head_dim, width = o.kv_heads * d;
  const std::vector<float> keys = key_map(o, attractors, layer);
  const std::vector<float> values = random_map(o, Stream::kValueMap, layer, width);
  std::vector<float> before(static_cast<std::size_t>(width)), now(before.size());
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    const std::span<const float> row{latents.data() + t * m, static_cast<std::size_t>(m)};
    const auto wide = static_cast<std::size_t>(width);
    apply_map(row, values, std::span{out.v}.subspan(static_cast<std::size_t>(t) * wide, wide));
    apply_map(row, keys, now);
    rope.stand_at(t);
    for (std::int64_t head = 0; head < o.kv_heads; ++head) {
      const auto at = static_cast<std::size_t>(t * o.kv_heads + head);
      const float* key = now.data() + head * d;
      out.key_square[at] = dot(key, key, d);
      if (t > 0) {
        const float other = out.key_square[at - static_cast<std::size_t>(o.kv_heads)];
        out.key_cosine[at] =
            dot(key, before.data() + head * d, d) / std::sqrt(out.key_square[at] * other);
      }
      float* to = out.k.data() + t * width + head * d;
      std::copy_n(key, d, to);
      rope.turn(to);
    }
    std::swap(now, before);
  }
}

void fill_queries(const GenerateOptions& o, const Text& text, const Attractors& attractors,
                  std::int64_t layer, Rotation& rope, Layer& out) {
  const std::int64_t d = o.head_dim, group = o.heads / o.kv_heads;
  // q . k * scale is the logit: a query of length gain / (|k| * scale) along k gives `gain`.
  const double per_logit = std::sqrt(static_cast<double>(d));
  const auto along_sink = static_cast<float>(1.0 / static_cast<double>(kSinkKey));
  const auto along_heavy = static_cast<float>(1.0 / static_cast<double>(kHeavyKey));
  std::vector<Gains> gains;
  for (std::int64_t head = 0; head < o.heads; ++head) gains.push_back(gains_of(o, layer, head));
  std::vector<float> sink(static_cast<std::size_t>(d)), heavy(sink.size());
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    rope.stand_at(t);
    sink = attractors.sink_query;
    heavy = attractors.heavy_query;
    rope.turn(sink.data());
    rope.turn(heavy.data());
    const std::int64_t answer = text.answer[static_cast<std::size_t>(t)];
    for (std::int64_t head = 0; head < o.heads; ++head) {
      const Draw draw{o.seed, Stream::kQuery, layer, head, t};
      const Gains& gain = gains[static_cast<std::size_t>(head)];
      // Each token leans a little more to one way of looking than to another.
      const float to_sink = along_sink * (static_cast<float>(gain.sink) + 0.4F * draw.normal(d));
      const float to_heavy =
          along_heavy * (static_cast<float>(gain.heavy) + 0.4F * draw.normal(d + 1));
      const std::int64_t kv = head / group;
      const auto aim = [&](std::int64_t at, double logit, float jitter) {
        const float square = out.key_square[static_cast<std::size_t>(at * o.kv_heads + kv)];
        return static_cast<float>(logit * per_logit) * (1 + jitter) /
               std::max(square, 0.25F * static_cast<float>(d));
      };
      const float to_here = aim(t, gain.local, 0.1F * draw.normal(d + 2));
      const float to_answer =
          answer < 0 ? 0 : aim(answer, gain.induction, 0.1F * draw.normal(d + 3));
      const float* here = out.k.data() + (t * o.kv_heads + kv) * d;
      const float* there = out.k.data() + (std::max<std::int64_t>(answer, 0) * o.kv_heads + kv) * d;
      float* q = out.q.data() + (t * o.heads + head) * d;
      for (std::int64_t j = 0; j < d; ++j) {
        const auto at = static_cast<std::size_t>(j);
        q[j] = to_sink * sink[at] + to_heavy * heavy[at] + to_here * here[j] +
               to_answer * there[j] + 0.3F * draw.normal(j);
      }
    }
  }
}

// ---- Scores and decisions ----

constexpr std::int64_t kScoreRows = 128;

/// [tokens, kv_heads]: the largest attention of sampled queries.
std::vector<float> kvzip_scores(const GenerateOptions& o, const Layer& layer) {
  const std::int64_t d = o.head_dim, group = o.heads / o.kv_heads;
  const std::int64_t first = o.with_repeat ? o.prompt_tokens + 2 : 0;
  const std::int64_t n = std::min(kScoreRows, o.tokens - first);
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  std::vector<float> scores(static_cast<std::size_t>(o.tokens * o.kv_heads));
  std::vector<double> p(static_cast<std::size_t>(o.tokens));
  for (std::int64_t i = 1; i <= n; ++i) {
    const std::int64_t t = first + i * (o.tokens - first) / n - 1;
    for (std::int64_t head = 0; head < o.heads; ++head) {
      const std::int64_t kv = head / group;
      const float* q = layer.q.data() + (t * o.heads + head) * d;
      double highest = -1e300, sum = 0;
      for (std::int64_t s = 0; s <= t; ++s) {
        const float logit = dot(q, layer.k.data() + (s * o.kv_heads + kv) * d, d);
        p[static_cast<std::size_t>(s)] = static_cast<double>(logit) * scale;
        highest = std::max(highest, p[static_cast<std::size_t>(s)]);
      }
      for (std::int64_t s = 0; s <= t; ++s) {
        double& x = p[static_cast<std::size_t>(s)];
        x = std::exp(x - highest);
        sum += x;
      }
      for (std::int64_t s = 0; s <= t; ++s) {
        float& best = scores[static_cast<std::size_t>(s * o.kv_heads + kv)];
        best = std::max(best, static_cast<float>(p[static_cast<std::size_t>(s)] / sum));
      }
    }
  }
  return scores;
}

std::vector<float> weighted_by_values(const GenerateOptions& o, const Layer& layer,
                                      std::vector<float> scores) {
  const std::int64_t d = o.head_dim;
  std::vector<float> length(scores.size());
  for (std::int64_t head = 0; head < o.kv_heads; ++head) {
    double mean = 0;
    for (std::int64_t t = 0; t < o.tokens; ++t) {
      const std::int64_t at = t * o.kv_heads + head;
      const float* v = layer.v.data() + at * d;
      length[static_cast<std::size_t>(at)] = std::sqrt(dot(v, v, d));
      mean += static_cast<double>(length[static_cast<std::size_t>(at)]);
    }
    mean /= static_cast<double>(o.tokens);
    for (std::int64_t t = 0; t < o.tokens; ++t) {
      const auto at = static_cast<std::size_t>(t * o.kv_heads + head);
      scores[at] *= length[at] / static_cast<float>(mean);
    }
  }
  return scores;
}

std::vector<float> predicted(const GenerateOptions& o, std::int64_t layer,
                             std::vector<float> scores) {
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    const Draw draw{o.seed, Stream::kScore, layer, 0, t};
    for (std::int64_t head = 0; head < o.kv_heads; ++head) {
      float& x = scores[static_cast<std::size_t>(t * o.kv_heads + head)];
      x = std::log(x + 1e-6F) + 0.3F * draw.normal(head);
    }
  }
  return scores;
}

struct Decisions {
  std::vector<float> alpha, omega, evict;  // [tokens, kv_heads]
};

Decisions decide(const GenerateOptions& o, const Layer& layer, const std::vector<float>& scores) {
  Decisions out{std::vector<float>(scores.size()), std::vector<float>(scores.size(), 1.0F),
                std::vector<float>(scores.size())};
  constexpr std::int64_t kNeverEvicted = 4;
  for (std::int64_t head = 0; head < o.kv_heads; ++head) {
    const auto at = [&](std::int64_t t) { return static_cast<std::size_t>(t * o.kv_heads + head); };
    std::vector<std::int64_t> order;
    for (std::int64_t t = 1; t < o.tokens; ++t) order.push_back(t);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return layer.key_cosine[at(a)] > layer.key_cosine[at(b)];
    });
    for (std::int64_t i = 0; i < o.tokens / 4; ++i)
      out.alpha[at(order[static_cast<std::size_t>(i)])] = 1;
    for (std::int64_t t = 1; t < o.tokens; ++t) {
      const float here = layer.key_square[at(t)], before = layer.key_square[at(t - 1)];
      out.omega[at(t)] = here / (here + before);
    }
    order.clear();
    for (std::int64_t t = kNeverEvicted; t < o.tokens; ++t) order.push_back(t);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return scores[at(a)] < scores[at(b)]; });
    const auto evicted = std::min(std::ssize(order), o.tokens / 2);
    for (std::int64_t i = 0; i < evicted; ++i)
      out.evict[at(order[static_cast<std::size_t>(i)])] = 1;
  }
  return out;
}

// ---- The file ----

TensorType type_of(Dtype dtype) {
  if (dtype == Dtype::kFp32) return TensorType::kF32;
  return dtype == Dtype::kFp16 ? TensorType::kF16 : TensorType::kBF16;
}

std::string_view word_of(Dtype dtype) {
  if (dtype == Dtype::kFp32) return "float32";
  return dtype == Dtype::kFp16 ? "float16" : "bfloat16";
}

std::vector<TensorPlan> plan_of(const GenerateOptions& o) {
  const TensorType type = type_of(o.dtype);
  const std::int64_t t = o.tokens, d = o.head_dim;
  std::vector<TensorPlan> plan;
  for (std::int32_t layer = 0; layer < o.layers; ++layer) {
    const auto add = [&](std::string_view name, TensorType as, std::vector<std::int64_t> shape) {
      plan.push_back({fmt::format("layers.{}.{}", layer, name), as, std::move(shape)});
    };
    add("q", type, {t, o.heads, d});
    add("k", type, {t, o.kv_heads, d});
    add("v", type, {t, o.kv_heads, d});
    if (o.with_hidden) add("hidden", type, {t, o.d_model});
    if (o.with_output_projection) add("wo", type, {o.d_model, o.heads * d});
    // Scores span decades below fp16's smallest number.
    if (o.with_scores) {
      for (const auto* name : {"score.kvzip", "score.kvzip_plus", "score.kvzap"}) {
        add(name, TensorType::kF32, {t, o.kv_heads});
      }
    }
    if (o.with_decisions) {
      for (const auto* name : {"decision.alpha", "decision.omega", "decision.evict"}) {
        add(name, TensorType::kF32, {t, o.kv_heads});
      }
    }
  }
  plan.push_back({"tokens", TensorType::kI32, {t}});
  return plan;
}

std::map<std::string, std::string> metadata_of(const GenerateOptions& o) {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  const bool half = o.rope_style == RopeStyle::kHalfSplit;
  std::map<std::string, std::string> m{
      {"format", "kv-attention-trace"},
      {"version", "1"},
      {"model", "synthetic"},
      {"num_layers", text(o.layers)},
      {"num_q_heads", text(o.heads)},
      {"num_kv_heads", text(o.kv_heads)},
      {"head_dim", text(o.head_dim)},
      {"prompt_len", text(o.prompt_tokens)},
      {"num_tokens", text(o.tokens)},
      {"trained_context", "none: synthetic"},
      {"rope", fmt::format("rotary on {}, theta={}, positions 0..T-1; q and k are stored after "
                           "rotation",
                           half ? "pairs (i,i+d/2)" : "interleaved pairs (2i,2i+1)", o.rope_theta)},
      {"rope_style", half ? "half_split" : "interleaved"},
      {"rope_theta", text(o.rope_theta)},
      {"softmax_scale", text(1.0 / std::sqrt(static_cast<double>(o.head_dim)))},
      {"mask", "causal"},
      {"gqa", "query head h uses kv head h // (num_q_heads // num_kv_heads)"},
      {"dtype", std::string{word_of(o.dtype)}},
      {"sampling", "none: token ids drawn from the seed"},
      {"source",
       fmt::format(
           "synthetic, drawn by kvsim (generator 1): seed {}, {} layers, {}/{} heads of {}, "
           "{} tokens, d_model {}",
           o.seed, o.layers, o.heads, o.kv_heads, o.head_dim, o.tokens, o.d_model)}};
  if (o.with_repeat) {
    m["repeat_start"] = text(o.prompt_tokens + 2);
    m["repeat_len"] = text(o.prompt_tokens - 1);
    m["repeat_of"] = "tokens 1..context-1";
  }
  return m;
}

void write_hidden(const GenerateOptions& o, const std::vector<float>& latents, std::int64_t layer,
                  SafetensorsWriter& writer) {
  const std::int64_t m = latent_size(o);
  const std::vector<float> map = random_map(o, Stream::kHiddenMap, layer, o.d_model);
  std::vector<float> row(static_cast<std::size_t>(o.d_model));
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    apply_map({latents.data() + t * m, static_cast<std::size_t>(m)}, map, row);
    writer.write(std::span<const float>{row});
  }
}

void write_output_projection(const GenerateOptions& o, std::int64_t layer,
                             SafetensorsWriter& writer) {
  const std::int64_t width = std::int64_t{o.heads} * o.head_dim;
  const float unit = 1.0F / std::sqrt(static_cast<float>(width));
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < o.d_model; ++i) {
    const Draw draw{o.seed, Stream::kOutput, layer, 0, i};
    for (std::int64_t j = 0; j < width; ++j)
      row[static_cast<std::size_t>(j)] = unit * draw.normal(j);
    writer.write(std::span<const float>{row});
  }
}

}  // namespace

void generate_trace(const GenerateOptions& options, const std::filesystem::path& path) {
  const GenerateOptions o = checked(options);
  const Text text = draw_text(o);
  Rotation rope{o};
  const Attractors attractors = attractors_of(o, rope);
  SafetensorsWriter writer{path, plan_of(o), metadata_of(o)};
  Layer layer;
  const auto rows = static_cast<std::size_t>(o.tokens);
  const auto pairs = rows * static_cast<std::size_t>(o.kv_heads);
  layer.q.resize(rows * static_cast<std::size_t>(o.heads) * static_cast<std::size_t>(o.head_dim));
  layer.k.resize(pairs * static_cast<std::size_t>(o.head_dim));
  layer.v.resize(layer.k.size());
  layer.key_cosine.resize(pairs);
  layer.key_square.resize(pairs);
  for (std::int32_t i = 0; i < o.layers; ++i) {
    const auto progress = [&](double share) {
      if (o.progress) o.progress((static_cast<double>(i) + share) / static_cast<double>(o.layers));
    };
    progress(0);
    const std::vector<float> latents = draw_latents(o, text, i);
    fill_keys(o, latents, attractors, i, rope, layer);
    progress(0.4);
    fill_queries(o, text, attractors, i, rope, layer);
    progress(0.7);
    for (const auto* tensor : {&layer.q, &layer.k, &layer.v}) {
      writer.write(std::span<const float>{*tensor});
    }
    if (o.with_hidden) write_hidden(o, latents, i, writer);
    if (o.with_output_projection) write_output_projection(o, i, writer);
    if (!o.with_scores && !o.with_decisions) continue;
    const std::vector<float> kvzip = kvzip_scores(o, layer);
    if (o.with_scores) {
      const std::vector<float> plus = weighted_by_values(o, layer, kvzip);
      writer.write(std::span<const float>{kvzip});
      writer.write(std::span<const float>{plus});
      writer.write(std::span<const float>{predicted(o, i, plus)});
    }
    if (o.with_decisions) {
      const Decisions d = decide(o, layer, kvzip);
      for (const auto* tensor : {&d.alpha, &d.omega, &d.evict}) {
        writer.write(std::span<const float>{*tensor});
      }
    }
  }
  writer.write(std::span<const std::int32_t>{text.tokens});
  writer.finish();
  if (o.progress) o.progress(1);
}

}  // namespace kvsim
