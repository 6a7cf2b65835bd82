#include "sim/serve/sequence_law.hpp"

#include <algorithm>
#include <utility>

#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMostLaws = 4096;   // kept though nobody follows them
constexpr std::int64_t kStepsAhead = 16;  // a law is asked for so many steps at once

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

Bytes rows_of(const CacheRows& rows, std::int64_t entries) {
  return rows.keys(entries) + rows.values(entries) + rows.side(entries);
}

std::vector<LayerColumn> columns_of(const BlockSizes& sizes) {
  std::vector<LayerColumn> columns;
  for (std::size_t l = 0; l < sizes.laws(); ++l) {
    columns.push_back({.first = sizes.law(l).layers.layer,
                       .count = sizes.law(l).layers.layers,
                       .law = static_cast<std::int32_t>(l)});
  }
  return columns;
}

CostInput input_for(CostInput base, const Method& method, std::int64_t prompt) {
  base.method = &method;
  base.batch = 1;
  base.prompt = prompt;
  return base;
}

}  // namespace

BlockSizes::BlockSizes(const CostInput& in, std::span<const LawLayers> laws)
    : block_{in.stack->block_tokens} {
  KVSIM_CHECK(!laws.empty() && block_ >= 1, "a cache of {} laws in blocks of {} entries",
              laws.size(), block_);
  CostInput one = in;
  one.batch = 1;
  one.prompt = 0;
  plain_ = in.method->plain_rows();
  for (const LawLayers& l : laws) {
    const CacheRows rows{one, l.layer};
    const Bytes bytes = rows_of(rows, block_);
    plain_ = plain_ && rows_of(rows, 2 * block_) == bytes * 2;
    const std::int32_t window = in.llm->layers[static_cast<std::size_t>(l.layer)].attention.window;
    windowed_ = windowed_ || window > 0;
    laws_.push_back({.layers = l, .window = window, .units = (bytes * l.layers).count()});
  }
  for (Law& l : laws_) {
    if (plain_) break;
    // What the method packs, or keeps beside its rows, comes with the end of the prompt.
    const AttentionSpec& a = in.llm->layers[static_cast<std::size_t>(l.layers.layer)].attention;
    l.units = (bytes_of(block_ * kv_elements_per_token(a), in.kv_dtype) * l.layers.layers).count();
  }
  counts_blocks_ = laws_.size() == 1 && plain_;
  if (counts_blocks_) {
    unit_ = Bytes{laws_.front().units};
    laws_.front().units = 1;
  }
  block_units_ = 0;
  for (const Law& l : laws_) block_units_ += l.units;
}

std::int64_t BlockSizes::prompt_units(std::int64_t tokens, std::int64_t chunk) const {
  const std::int64_t blocks = divide_up(tokens, block_);
  if (!windowed_) return blocks * block_units_;
  std::int64_t units = 0;
  for (const Law& l : laws_) {
    const std::int64_t reach = divide_up(l.window - 1 + chunk, block_) + 1;
    units += l.units * (l.window > 0 ? std::min(blocks, reach) : blocks);
  }
  return units;
}

SequenceLaw::SequenceLaw(std::shared_ptr<const Method> method, const CostInput& base,
                         const BlockSizes& sizes, std::int64_t prompt)
    : method_{std::move(method)},
      in_{input_for(base, *method_, prompt)},
      sizes_{&sizes},
      prompt_{prompt},
      columns_{columns_of(sizes)},
      trajectory_{in_, columns_, prompt, true},
      all_layers_{method_->prefill_peak() == PrefillPeak::kAllLayers},
      known_units_(sizes.laws()) {
  for (const LayerColumn& column : columns_) {
    rows_.push_back(std::make_unique<CacheRows>(in_, column.first));
    const std::int64_t kept = trajectory_.prompt_entries(column);
    const bool windowed = sizes.law(static_cast<std::size_t>(column.law)).window > 0;
    compresses_prompt_ = compresses_prompt_ || (kept < prompt && !windowed);
    kept_units_ += units_of(static_cast<std::size_t>(column.law), kept, windowed && kept < prompt);
  }
  // Rows that are packed once the prompt is through take less than those that were computed.
  if (!sizes.windowed() && kept_units_ < sizes.prompt_units(prompt, prompt)) {
    compresses_prompt_ = true;
  }
}

std::int64_t SequenceLaw::units_of(std::size_t l, std::int64_t entries, bool straddles) {
  const BlockSizes::Law& law = sizes_->law(l);
  const std::int64_t block = sizes_->block_tokens();
  const std::int64_t blocks = divide_up(entries, block) + (straddles ? 1 : 0);
  if (sizes_->plain()) return blocks * law.units;
  std::vector<std::int64_t>& known = known_units_[l];
  const auto at = static_cast<std::size_t>(blocks);
  if (at >= known.size()) known.resize(at + 1, -1);
  if (known[at] < 0) {
    // Formats that pack rows by the group take most just before a group is full.
    Bytes most;
    for (std::int64_t e = std::max<std::int64_t>(0, (blocks - 1) * block + 1); e <= blocks * block;
         ++e) {
      most = std::max(most, rows_of(*rows_[l], e));
    }
    known[at] = (most * law.layers.layers).count();
  }
  return known[at];
}

void SequenceLaw::seek(std::int64_t step) {
  if (step > reached_) {
    reached_ = step + kStepsAhead;
    trajectory_.extend(in_, reached_);
  }
  segment_ = trajectory_.segment_of(step);
}

SequenceLaw::Step SequenceLaw::units(std::int64_t step) {
  if (step == asked_) return answer_;
  Step out;
  (void)moment(0, step);
  const std::int64_t last = trajectory_.segments()[segment_].last;
  const std::int64_t block = sizes_->block_tokens();
  out.until = last;
  for (std::size_t l = 0; l < columns_.size(); ++l) {
    const DecodeMoment m = moment(l, step);
    const bool windowed = sizes_->law(l).window > 0;
    // A window's blocks start anywhere within one; methods that drop entries write survivors from a
    // block's start.
    const bool straddles = windowed && m.after < m.before + 1 && !m.evicts;
    const std::int64_t within = m.change == CacheChange::kOverwrite ? m.after : m.before + 1;
    const std::int64_t during = std::max(within, m.after);
    out.after += units_of(l, m.after, straddles);
    out.during += units_of(l, during, straddles);
    out.evicts = out.evicts || m.evicts;
    if (moment(l, last).after == m.after) continue;
    // It grows by an entry a step: up to the end of the block that it stands in.
    for (const std::int64_t entries : {m.after, during}) {
      out.until = std::min(out.until, step + divide_up(entries, block) * block - entries);
    }
  }
  asked_ = step;
  answer_ = out;
  return out;
}

Bytes SequenceLaw::logical(std::int64_t step) {
  Bytes sum;
  for (std::size_t l = 0; l < columns_.size(); ++l) {
    const std::int64_t entries =
        step > 0 ? moment(l, step).after : trajectory_.prompt_entries(columns_[l]);
    sum += rows_of(*rows_[l], entries) * columns_[l].count;
  }
  return sum;
}

std::int64_t SequenceLaw::most_units(std::int64_t steps) {
  std::int64_t most = kept_units_;
  if (all_layers_ || !compresses_prompt_) {
    most =
        std::max(most, sizes_->windowed() ? kept_units_ : sizes_->prompt_units(prompt_, prompt_));
  }
  if (steps < 1) return most;
  (void)moment(0, steps);
  for (const Trajectory::Segment& s : trajectory_.segments()) {
    if (s.first > steps) break;
    most = std::max({most, units(s.first).during, units(std::min(s.last, steps)).during});
  }
  return most;
}

SequenceLaws::SequenceLaws(MethodSpec method, MethodSite site,
                           std::shared_ptr<const MeasuredLaw> measured, CostInput base)
    : method_{std::move(method)},
      site_{std::move(site)},
      measured_{std::move(measured)},
      base_{base} {}

std::shared_ptr<const Method> SequenceLaws::settle(std::int64_t prompt) const {
  std::shared_ptr<const Method> method = make_method(method_, prompt, site_);
  if (measured_) return with_measured_law(std::move(method), *measured_, base_.llm->n_layers());
  if (auto law = expected_law(*method, prompt, base_.llm->n_layers())) {
    return with_measured_law(std::move(method), std::move(*law), base_.llm->n_layers());
  }
  return method;
}

std::shared_ptr<const Method> SequenceLaws::settle_or_full(std::int64_t prompt) {
  try {
    return settle(prompt);
  } catch (const InputError& e) {
    if (unsettled_.lengths == 0) unsettled_ = {0, prompt, prompt, e.what()};
    if (unsettled_lengths_.insert(prompt).second) ++unsettled_.lengths;
    unsettled_.shortest = std::min(unsettled_.shortest, prompt);
    unsettled_.longest = std::max(unsettled_.longest, prompt);
    return make_method({"full", {}, {}}, prompt, site_);
  }
}

SequenceLaw& SequenceLaws::at(std::int64_t prompt, const BlockSizes& sizes) {
  std::unique_ptr<SequenceLaw>& law = laws_[prompt];
  if (!law) {
    if (laws_.size() > kMostLaws) {
      std::erase_if(laws_, [&](const auto& known) {
        return known.first != prompt && known.second->users == 0;
      });
    }
    laws_[prompt] = std::make_unique<SequenceLaw>(settle_or_full(prompt), base_, sizes, prompt);
  }
  return *laws_.at(prompt);
}

MethodSite method_site(const Llm& llm, Dtype kv_dtype) {
  const AttentionSpec& attention = llm.layers.front().attention;
  MethodSite site{.recorded = kv_dtype,
                  .shape = {attention.n_heads, attention.n_kv_heads, attention.head_dim},
                  .windows = {},
                  .n_layers = llm.n_layers(),
                  .d_model = llm.d_model};
  for (const LayerSpec& layer : llm.layers) site.windows.push_back(layer.attention.window);
  return site;
}

}  // namespace kvsim
