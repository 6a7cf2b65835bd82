// Synthetic traces: the same bytes from the same seed, the promised attention, and the relations
// between tensors that the header states.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/math/attention/rope.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/traces/scratch.hpp"
#include "traces/check.hpp"
#include "traces/synthetic/generate.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

GenerateOptions small() {
  GenerateOptions o;
  o.layers = 2;
  o.heads = 4;
  o.kv_heads = 2;
  o.head_dim = 16;
  o.tokens = 96;
  o.prompt_tokens = 64;
  return o;
}

Trace made(const GenerateOptions& o, const std::string& name) {
  const auto path = scratch(name);
  generate_trace(o, path);
  return Trace::open(path);
}

/// Row `token` of head `head` of a [heads, tokens, d] tensor.
std::span<const float> row(const std::vector<float>& rows, const TraceInfo& info, std::int64_t head,
                           std::int64_t token) {
  return std::span{rows}.subspan(
      static_cast<std::size_t>((head * info.tokens + token) * info.head_dim),
      static_cast<std::size_t>(info.head_dim));
}

}  // namespace

TEST_CASE("generate: equal options give equal bytes and different seeds different ones") {
  GenerateOptions o = small();
  o.with_hidden = o.with_output_projection = o.with_scores = o.with_decisions = true;
  generate_trace(o, scratch("gen_a.safetensors"));
  generate_trace(o, scratch("gen_b.safetensors"));
  o.seed = 1;
  generate_trace(o, scratch("gen_c.safetensors"));
  const auto a = bytes_of_file(scratch("gen_a.safetensors"));
  CHECK(a.size() > 1000);
  CHECK(a == bytes_of_file(scratch("gen_b.safetensors")));
  CHECK(a != bytes_of_file(scratch("gen_c.safetensors")));
}

TEST_CASE("generate: a trace opens and has the requested properties") {
  GenerateOptions o = small();
  o.with_hidden = o.with_output_projection = o.with_scores = o.with_decisions = true;
  o.d_model = 48;
  o.rope_style = RopeStyle::kInterleaved;
  o.rope_theta = 500;
  double last = -1;
  bool rises = true;
  o.progress = [&](double share) {
    rises = rises && share >= last && share <= 1;
    last = share;
  };
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kFp16, Dtype::kBf16}) {
    o.dtype = dtype;
    last = -1;
    const Trace trace = made(o, "gen_info.safetensors");
    CHECK(rises);
    CHECK(last == 1);
    const TraceInfo& info = trace.info();
    CHECK(info.model == "synthetic");
    CHECK(info.n_layers == 2);
    CHECK(info.n_heads == 4);
    CHECK(info.n_kv_heads == 2);
    CHECK(info.head_dim == 16);
    CHECK(info.d_model == 48);
    CHECK(info.tokens == 96);
    CHECK(info.prompt_tokens == 64);
    CHECK(info.dtype == dtype);
    CHECK(info.softmax_scale == rel(0.25));
    CHECK(info.rope_style == RopeStyle::kInterleaved);
    CHECK(info.rope_theta == 500.0);
    CHECK(info.has_hidden);
    CHECK(info.has_output_projection);
    CHECK(info.scores == std::vector<std::string>{"kvzap", "kvzip", "kvzip_plus"});
    CHECK(info.decisions == std::vector<std::string>{"alpha", "evict", "omega"});
    CHECK(trace.read_tokens().size() == 96);
    for (std::int32_t layer = 0; layer < info.n_layers; ++layer) (void)trace.read_layer(layer);
  }
}

TEST_CASE("generate: attention has sinks, locality and heavy hitters at every size") {
  struct Shape {
    std::int32_t heads, kv_heads, head_dim;
    std::int64_t tokens;
  };
  for (const Shape shape : {Shape{8, 2, 64, 512}, Shape{6, 6, 32, 300}, Shape{16, 4, 128, 1024}}) {
    for (const std::uint64_t seed : {0U, 1U, 2U}) {
      INFO(shape.heads, " heads, ", shape.tokens, " tokens, seed ", seed);
      GenerateOptions o;
      o.layers = 3;
      o.heads = shape.heads;
      o.kv_heads = shape.kv_heads;
      o.head_dim = shape.head_dim;
      o.tokens = shape.tokens;
      o.prompt_tokens = shape.tokens / 2;
      o.seed = seed;
      const TraceCheck check = check_trace(made(o, "gen_stats.safetensors"), 256);
      double sink = 0, last32 = 0, top5 = 0, spread = 0;
      for (const LayerCheck& layer : check.layers) {
        sink = std::max(sink, layer.first_token.high);
        last32 += layer.last32.mean / 3;
        top5 += layer.top5.mean / 3;
        spread = std::max(spread, layer.first_token.high - layer.first_token.low);
        CHECK(layer.heavy20.mean > 0.4);
        CHECK(layer.worst_row_sum < 1e-12);
      }
      CHECK(sink > 0.2);                           // in at least some heads
      CHECK(last32 > 1.5 * check.uniform_last32);  // well above uniform
      CHECK(top5 > 0.5);                           // most mass in few tokens
      CHECK(spread > 0.1);                         // heads differ
    }
  }
}

TEST_CASE("generate: keys before RoPE and values are linear in the hidden rows") {
  // With 16 hidden coordinates, any 16 independent rows fix the map; every other row must obey it.
  GenerateOptions o = small();
  o.with_hidden = true;
  o.d_model = 16;
  o.tokens = 300;
  o.dtype = Dtype::kFp32;
  for (const RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved}) {
    o.rope_style = style;
    const Trace trace = made(o, "gen_linear.safetensors");
    const TraceInfo& info = trace.info();
    const Rope rope{o.head_dim, o.rope_theta, style == RopeStyle::kInterleaved};
    const auto layer = trace.read_layer(1);
    const auto hidden = trace.read_hidden(1);
    double square = 0;
    for (const float x : hidden) square += static_cast<double>(x) * static_cast<double>(x);
    CHECK(square / static_cast<double>(hidden.size()) > 0.5);
    CHECK(square / static_cast<double>(hidden.size()) < 2.0);
    // Least squares of one column on the hidden rows by normal equations.
    constexpr std::size_t n = 16;
    for (const bool values : {false, true}) {
      std::vector<double> column;
      for (std::int64_t t = 0; t < info.tokens; ++t) {
        const auto from = row(values ? layer.v : layer.k, info, 1, t);
        std::vector<float> x{from.begin(), from.end()};
        if (!values) rope.rotate(x, -t);
        column.push_back(static_cast<double>(x[3]));
      }
      std::vector<std::vector<double>> a(n, std::vector<double>(n + 1, 0.0));
      for (std::size_t t = 0; t < column.size(); ++t) {
        for (std::size_t i = 0; i < n; ++i) {
          const auto x = static_cast<double>(hidden[t * n + i]);
          for (std::size_t j = 0; j < n; ++j) a[i][j] += x * static_cast<double>(hidden[t * n + j]);
          a[i][n] += x * column[t];
        }
      }
      for (std::size_t i = 0; i < n; ++i) a[i][i] += 1e-9;  // the latents may have fewer dimensions
      for (std::size_t i = 0; i < n; ++i) {
        std::size_t pivot = i;
        for (std::size_t r = i; r < n; ++r) {
          if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
        }
        std::swap(a[i], a[pivot]);
        for (std::size_t r = 0; r < n; ++r) {
          if (r == i) continue;
          const double f = a[r][i] / a[i][i];
          for (std::size_t c = i; c <= n; ++c) a[r][c] -= f * a[i][c];
        }
      }
      double worst = 0, largest = 0;
      for (std::size_t t = 0; t < column.size(); ++t) {
        double y = 0;
        for (std::size_t i = 0; i < n; ++i) {
          y += a[i][n] / a[i][i] * static_cast<double>(hidden[t * n + i]);
        }
        worst = std::max(worst, std::abs(y - column[t]));
        largest = std::max(largest, std::abs(column[t]));
      }
      INFO((values ? "v" : "k"));
      CHECK(largest > 0.5);
      CHECK(worst < 1e-3 * largest);
    }
  }
}

TEST_CASE("generate: a repeat repeats tokens, values and keys before RoPE") {
  GenerateOptions o = small();
  o.with_repeat = true;
  o.with_scores = true;
  o.tokens = 2 * o.prompt_tokens + 1;
  o.dtype = Dtype::kFp32;
  const Trace trace = made(o, "gen_repeat.safetensors");
  const TraceInfo& info = trace.info();
  REQUIRE(info.repeat_start == o.prompt_tokens + 2);
  REQUIRE(info.repeat_tokens == o.prompt_tokens - 1);
  const auto tokens = trace.read_tokens();
  const auto layer = trace.read_layer(0);
  const Rope rope{o.head_dim, o.rope_theta, false};
  for (std::int64_t i = 0; i < *info.repeat_tokens; ++i) {
    const std::int64_t context = 1 + i, repeat = *info.repeat_start + i;
    CHECK(tokens[static_cast<std::size_t>(context)] == tokens[static_cast<std::size_t>(repeat)]);
    const auto v = row(layer.v, info, 0, context), v2 = row(layer.v, info, 0, repeat);
    CHECK(std::equal(v.begin(), v.end(), v2.begin()));
    const auto k = row(layer.k, info, 0, context), k2 = row(layer.k, info, 0, repeat);
    std::vector<float> turned{k.begin(), k.end()};
    rope.rotate(turned, repeat - context);
    for (std::size_t j = 0; j < turned.size(); ++j) {
      CHECK(std::abs(turned[j] - k2[j]) < 1e-5F * 16);
    }
  }
  // Queries of the repeat find the context's keys again.
  const auto scores = trace.read_per_head(0, "score.kvzip");
  const auto context = scores.begin() + o.prompt_tokens * o.kv_heads;
  CHECK(*std::max_element(scores.begin(), context) > 0.3F);
}

TEST_CASE("generate: scores and decisions are as documented in the header") {
  GenerateOptions o = small();
  o.with_scores = o.with_decisions = true;
  const Trace trace = made(o, "gen_scores.safetensors");
  const auto n_kv = static_cast<std::size_t>(o.kv_heads);
  const auto kvzip = trace.read_per_head(1, "score.kvzip");
  const auto alpha = trace.read_per_head(1, "decision.alpha");
  const auto omega = trace.read_per_head(1, "decision.omega");
  const auto evict = trace.read_per_head(1, "decision.evict");
  CHECK(std::all_of(kvzip.begin(), kvzip.end(), [](float x) { return x >= 0 && x <= 1.00001F; }));
  CHECK(std::all_of(omega.begin(), omega.end(), [](float x) { return x > 0 && x <= 1; }));
  for (std::size_t head = 0; head < n_kv; ++head) {
    std::int64_t merged = 0, evicted = 0;
    float best_evicted = 0, worst_kept = 1;
    for (std::size_t t = 0; t < static_cast<std::size_t>(o.tokens); ++t) {
      const std::size_t at = t * n_kv + head;
      CHECK((alpha[at] == 0 || alpha[at] == 1));
      CHECK((evict[at] == 0 || evict[at] == 1));
      merged += alpha[at] == 1 ? 1 : 0;
      evicted += evict[at] == 1 ? 1 : 0;
      if (t < 4) CHECK(evict[at] == 0);
      if (t < 4) continue;
      if (evict[at] == 1) best_evicted = std::max(best_evicted, kvzip[at]);
      if (evict[at] == 0) worst_kept = std::min(worst_kept, kvzip[at]);
    }
    CHECK(alpha[head] == 0);  // nothing before the first token
    CHECK(omega[head] == 1);
    CHECK(merged == o.tokens / 4);
    CHECK(evicted == o.tokens / 2);
    CHECK(best_evicted <= worst_kept);
  }
}

TEST_CASE("generate: the smallest traces are written and read") {
  GenerateOptions o = small();
  o.heads = o.kv_heads = 1;
  o.layers = 1;
  o.head_dim = 8;
  o.tokens = 2;
  o.prompt_tokens = 1;
  o.with_hidden = o.with_output_projection = o.with_scores = o.with_decisions = true;
  const Trace trace = made(o, "gen_tiny.safetensors");
  CHECK(trace.info().d_model == 16);
  (void)trace.read_layer(0);
}

TEST_CASE("generate: invalid options are refused by name") {
  struct Case {
    std::function<void(GenerateOptions&)> spoil;
    std::string begins;
  };
  const std::vector<Case> cases{
      {[](auto& o) { o.layers = 0; }, "layers: expected an integer in [1, 1024], got 0"},
      {[](auto& o) { o.heads = 5; }, "heads: expected a multiple of kv_heads (2), got 5"},
      {[](auto& o) { o.kv_heads = -1; }, "kv_heads: "},
      {[](auto& o) { o.head_dim = 15; }, "head_dim: expected an even integer, got 15"},
      {[](auto& o) { o.head_dim = 6; }, "head_dim: expected an integer in [8, 1024], got 6"},
      {[](auto& o) { o.tokens = 1; }, "tokens: "},
      {[](auto& o) { o.tokens = std::int64_t{1} << 40; }, "tokens: "},
      {[](auto& o) { o.prompt_tokens = 96; },
       "prompt_tokens: expected an integer in [1, 95], got 96"},
      {[](auto& o) { o.d_model = 8; }, "d_model: "},
      {[](auto& o) { o.dtype = Dtype::kInt8; }, "dtype: expected fp32, fp16 or bf16, got int8"},
      {[](auto& o) { o.rope_theta = std::nan(""); }, "rope_theta: "},
      {[](auto& o) { o.rope_theta = 1; }, "rope_theta: "},
      {[](auto& o) { o.with_repeat = true; }, "tokens: expected 129 "},
  };
  for (const Case& c : cases) {
    GenerateOptions o = small();
    c.spoil(o);
    const auto path = scratch("gen_refused.safetensors");
    const std::string said = complaint<InputError>([&] { generate_trace(o, path); });
    INFO(c.begins, " / ", said);
    CHECK(said.starts_with(c.begins));
    CHECK_FALSE(std::filesystem::exists(path));
  }
}
