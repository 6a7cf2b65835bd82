#include "sim/batch/point/storage_trend.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "models/cost/cache_rows.hpp"

namespace kvsim {
namespace {

using Moved = std::array<double, sizeof(StepTraffic) / sizeof(double)>;

// Values are sums of a few products, so a deviation above rounding is off the line.
constexpr double kRounding = 1e-12;

// Steps of a line that is worth a separate segment.
constexpr std::int64_t kShortLine = 32;

}  // namespace

StorageTrend::StorageTrend(std::vector<Layer> layers) {
  for (const Layer& layer : layers) layers_.push_back({.layer = layer, .last = {}});
}

void StorageTrend::take(const CostInput& in, const DecodeState& m, State& state) {
  const std::int32_t layer = state.layer.first;
  const CacheRows rows{in, layer};
  const auto stored = [&](std::int64_t entries) {
    if (entries == state.last.entries) return state.last;
    return Stored{.entries = entries,
                  .kv = static_cast<double>((rows.keys(entries) + rows.values(entries)).count()),
                  .side = static_cast<double>(rows.side(entries).count())};
  };
  if (rows.shape().n_heads == 0) return;  // no method changes the data of such a layer
  const Stored before = stored(m.before);
  const Stored within = stored(m.before + 1);
  const Stored after = m.after == within.entries ? within : stored(m.after);
  const Values old = state.now;
  auto value = state.now.begin();
  for (const Stored* s : {&before, &within, &after}) {
    *value++ = s->kv;
    *value++ = s->side;
  }
  state.last = after;
  const StepTraffic traffic = in.method->decode_traffic(layer, rows.shape(), in.kv_dtype,
                                                        static_cast<double>(m.attended), m.evicts);
  for (const double moved : std::bit_cast<Moved>(traffic)) *value++ = moved;
  if (in.stack->masks_evicted) {
    const PrefillExtra all = in.method->masked_step(layer, rows.shape(), in.kv_dtype, m.attended);
    for (const double moved :
         {all.flops, all.read, all.written, static_cast<double>(all.transient.count()),
          static_cast<double>(all.launches)}) {
      *value++ = moved;
    }
  }
  // A value that becomes zero or nonzero removes or adds operators.
  state.falls = !std::equal(old.begin(), old.end(), state.now.begin(), [](double was, double is) {
    return was <= is && (was == 0) == (is == 0);
  });
  if (in.stack->growth != CacheGrowth::kPaged) return;
  // Whole pages extend into entries that are stored later.
  const auto was = state.pages;
  auto page = state.pages.begin();
  for (const std::int64_t entries : {m.before, m.after}) {
    const LayerCache held = rows.cache(entries);
    *page++ = static_cast<double>(held.kv().count());
    *page++ = static_cast<double>(held.side.count());
  }
  state.falls =
      state.falls || !std::equal(was.begin(), was.end(), state.pages.begin(), std::less_equal{});
}

FormatPath StorageTrend::next(const CostInput& in, std::int64_t prompt,
                              const std::vector<DecodeState>& moments) {
  CostInput one = in;
  one.batch = 1;
  one.prompt = prompt;
  const double share = 1.0 / static_cast<double>(++steps_);
  bool line = !stairs_;
  bool falls = false;
  for (State& state : layers_) {
    take(one, moments[static_cast<std::size_t>(state.layer.size_class)], state);
    falls = falls || state.falls;
    for (std::size_t i = 0; line && !falls && i < state.now.size(); ++i) {
      const double now = state.now[i];
      const double from = state.from[i];
      const double slack = i < kStored ? 1.0 : kRounding * std::max(std::abs(now), std::abs(from));
      Rise& rise = state.rise[i];
      const double min = (now - from - slack) * share;
      const double max = (now - from + slack) * share;
      rise.min = steps_ == 1 ? min : std::max(rise.min, min);
      rise.max = steps_ == 1 ? max : std::min(rise.max, max);
      line = rise.min <= rise.max;
    }
  }
  climbs_ = !falls && !line;
  if (falls) return FormatPath::kBroken;
  if (line) return FormatPath::kLine;
  return stairs_ ? FormatPath::kMonotonicSteps : FormatPath::kBroken;
}

void StorageTrend::start() {
  for (State& state : layers_) state.from = state.now;
  stairs_ = climbs_ && steps_ <= kShortLine;
  steps_ = 0;
}

}  // namespace kvsim
