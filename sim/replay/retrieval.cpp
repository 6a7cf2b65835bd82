#include "sim/replay/retrieval.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/tiles/panels.hpp"
#include "models/math/tiles/tile_kernels.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

// The number of StreamingLLM.
constexpr std::int64_t kSinks = 4;

}  // namespace

std::optional<RetrievalMarks> retrieval_marks(const TraceInfo& info) {
  if (!info.answer_start) return std::nullopt;
  RetrievalMarks out{.first = kSinks,
                     .end = info.question_start.value_or(*info.answer_start),
                     .predicts = std::vector<bool>(static_cast<std::size_t>(info.tokens))};
  bool has_answer = false;
  const auto mark = [&](std::int64_t start, std::int64_t end) {
    has_answer = true;
    // A query that predicts an answer follows the whole context.
    for (std::int64_t t = std::max<std::int64_t>({start, out.end, 1}); t < end; ++t) {
      out.predicts[static_cast<std::size_t>(t - 1)] = true;
    }
  };
  for (const TraceSegment& segment : info.segments) {
    if (segment.name == "answer") mark(segment.start, segment.end);
  }
  if (!has_answer) mark(*info.answer_start, info.tokens);
  return out;
}

void largest_in_context(const HeadVectors& head, const RetrievalMarks& marks, std::int64_t first,
                        std::int64_t count, std::span<const double> log_sum, std::span<float> out) {
  const auto group = static_cast<std::size_t>(head.group);
  KVSIM_CHECK(
      log_sum.size() == static_cast<std::size_t>(count) * group && out.size() == log_sum.size(),
      "{} sums for {} queries of {} heads", log_sum.size(), count, head.group);
  std::fill(out.begin(), out.end(), 0.0F);
  std::vector<std::size_t> rows_wanted;  // rows of `out` to fill
  for (std::int64_t i = 0; i < count; ++i) {
    if (!marks.predicts[static_cast<std::size_t>(first + i)]) continue;
    for (std::size_t g = 0; g < group; ++g)
      rows_wanted.push_back(static_cast<std::size_t>(i) * group + g);
  }
  if (rows_wanted.empty()) return;
  const TileKernels& kernels = tile_kernels();
  const std::size_t width = kernels.width;
  const auto d = static_cast<std::size_t>(head.head_dim);
  std::vector<float> queries(d * width), scores(kTileEntries * width), highest(width);
  for (std::size_t panel = 0; panel < rows_wanted.size(); panel += width) {
    const std::span<const std::size_t> rows =
        std::span{rows_wanted}.subspan(panel, std::min(width, rows_wanted.size() - panel));
    std::fill(queries.begin(), queries.end(), 0.0F);
    for (std::size_t lane = 0; lane < rows.size(); ++lane) {
      const std::span<const float> q =
          head.query(static_cast<std::int32_t>(rows[lane] % group),
                     first + static_cast<std::int64_t>(rows[lane] / group));
      for (std::size_t c = 0; c < d; ++c) queries[c * width + lane] = q[c];
    }
    std::fill(highest.begin(), highest.end(), -std::numeric_limits<float>::infinity());
    for (std::int64_t at = marks.first; at < marks.end;
         at += static_cast<std::int64_t>(kTileEntries)) {
      const std::size_t n = std::min(kTileEntries, static_cast<std::size_t>(marks.end - at));
      kernels.score(head.key(at).data(), n, d, queries.data(), scores.data());
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t lane = 0; lane < width; ++lane) {
          highest[lane] = std::max(highest[lane], scores[i * width + lane]);
        }
      }
    }
    for (std::size_t lane = 0; lane < rows.size(); ++lane) {
      const double logit = static_cast<double>(highest[lane]) * head.scale;
      out[rows[lane]] = static_cast<float>(std::min(1.0, std::exp(logit - log_sum[rows[lane]])));
    }
  }
}

}  // namespace kvsim
