#include "sim/replay/replay.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/replay/head_replay.hpp"
#include "sim/replay/summary.hpp"

namespace kvsim {
namespace {

std::optional<Rope> rope_of(const TraceInfo& info) {
  if (!info.rope_style || !info.rope_theta || info.head_dim % 2 != 0) return std::nullopt;
  return Rope{info.head_dim, *info.rope_theta, *info.rope_style == RopeStyle::kInterleaved};
}

/// Layers whose heads are replayed side by side: more than one where a layer has fewer heads than
/// there are threads, and then no more than fit in a quarter of a GiB, so that long traces stay
/// streamed.
std::int32_t layers_at_once(const TraceInfo& info, int threads) {
  constexpr std::int64_t kMostBytes = 256 << 20;
  const std::int64_t layer_bytes = info.tokens * info.head_dim *
                                   (info.n_heads + 2LL * info.n_kv_heads) *
                                   static_cast<std::int64_t>(sizeof(float));
  const std::int64_t wanted = (threads + info.n_kv_heads - 1) / info.n_kv_heads;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(kMostBytes / layer_bytes, 1, wanted));
}

/// Reports progress from many threads, one at a time, never going back.
class Progress {
 public:
  Progress(const std::function<void(double)>& report, std::size_t total)
      : report_{report}, total_{static_cast<double>(total)} {}
  void one_done() {
    if (!report_) return;
    const std::scoped_lock lock{guard_};
    report_(++done_ / total_);
  }

 private:
  const std::function<void(double)>& report_;
  double total_;
  double done_ = 0;
  std::mutex guard_;
};

}  // namespace

std::shared_ptr<const Method> settle_for_trace(const MethodSpec& spec, const TraceInfo& info) {
  const MethodSite site{
      .recorded = info.dtype,
      .shape = {.n_heads = info.n_heads, .n_kv_heads = info.n_kv_heads, .head_dim = info.head_dim}};
  auto method = make_method(spec, info.prompt_tokens, site);
  if (as_composed(*method).parts().rerotate && !(info.rope_style && info.rope_theta)) {
    throw InputError{
        fmt::format("method \"{}\" on trace \"{}\": positions=rerotate needs rope_style "
                    "and rope_theta in the trace's metadata",
                    spec.name, info.name)};
  }
  return method;
}

ReplayResult replay(const Trace& trace, const std::vector<MethodSpec>& specs,
                    const ReplayOptions& options) {
  const TraceInfo& info = trace.info();
  std::vector<std::shared_ptr<const Method>> methods;
  for (const MethodSpec& spec : specs) methods.push_back(settle_for_trace(spec, info));
  const std::optional<Rope> rope = rope_of(info);
  const auto heads = static_cast<std::size_t>(info.n_kv_heads);
  const std::int32_t group = info.n_heads / info.n_kv_heads;
  const auto row = static_cast<std::size_t>(info.tokens) * static_cast<std::size_t>(info.head_dim);

  std::vector<ReplaySummary> summaries;
  summaries.reserve(methods.size());
  for (const auto& method : methods) summaries.emplace_back(as_composed(*method), info, options);

  Progress progress{options.progress, heads * static_cast<std::size_t>(info.n_layers)};
  const std::int32_t at_once = layers_at_once(info, thread_count(options.threads));
  for (std::int32_t first = 0; first < info.n_layers; first += at_once) {
    const std::int32_t count = std::min(at_once, info.n_layers - first);
    std::vector<TraceLayer> layers;
    for (std::int32_t i = 0; i < count; ++i) layers.push_back(trace.read_layer(first + i));
    // [method][layer of these][kv head][stored heads of that kv head]
    std::vector<std::vector<std::vector<std::vector<HeadSeries>>>> series(
        methods.size(), std::vector<std::vector<std::vector<HeadSeries>>>(
                            layers.size(), std::vector<std::vector<HeadSeries>>(heads)));
    parallel_for(layers.size() * heads, options.threads, [&](std::size_t task) {
      const std::size_t l = task / heads;
      const std::size_t h = task % heads;
      const TraceLayer& vectors = layers[l];
      const HeadVectors head{
          .q = std::span{vectors.q}.subspan(h * static_cast<std::size_t>(group) * row,
                                            static_cast<std::size_t>(group) * row),
          .keys = std::span{vectors.k}.subspan(h * row, row),
          .values = std::span{vectors.v}.subspan(h * row, row),
          .group = group,
          .head_dim = info.head_dim,
          .tokens = info.tokens,
          .prompt = info.prompt_tokens,
          .scale = info.softmax_scale};
      const CausalAttention reference =
          causal_attention(head.q, head.keys, head.values, group, info.head_dim, info.tokens,
                           info.prompt_tokens, info.softmax_scale);
      RecordedPromptScores scores{head};
      for (std::size_t m = 0; m < methods.size(); ++m) {
        series[m][l][h] =
            replay_head(as_composed(*methods[m]), first + static_cast<std::int32_t>(l), head,
                        reference, scores, rope ? &*rope : nullptr, options.kept_positions);
      }
      progress.one_done();
    });
    for (std::size_t m = 0; m < methods.size(); ++m) {
      for (std::int32_t l = 0; l < count; ++l) {
        std::vector<HeadSeries> flat;
        for (auto& of_head : series[m][static_cast<std::size_t>(l)]) {
          for (HeadSeries& each : of_head) flat.push_back(std::move(each));
        }
        summaries[m].add_layer(first + l, flat);
      }
    }
  }

  ReplayResult result;
  result.trace = info.name;
  for (std::size_t m = 0; m < methods.size(); ++m) {
    result.methods.push_back(summaries[m].finish());
    if (const auto& budget = specs[m].budget) {
      result.methods.back().budget =
          budget->fraction > 0 ? budget->fraction : static_cast<double>(budget->entries);
    }
  }
  return result;
}

}  // namespace kvsim
