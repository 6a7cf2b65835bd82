#include "sim/serve/cache/sequence_footprint.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "models/llm/layer/layer_kind.hpp"
#include "models/methods/resolve/masked.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxFootprints = 4096;  // kept although unused
constexpr double kRounding = 1e-6;            // of entries that a step reads
constexpr std::int64_t kStepsAhead = 16;      // steps of a size law that are evaluated together

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// Excludes the bytes that `method` holds with zero entries: scales of a head, a few bytes, which
/// are not part of blocks.
Bytes rows_of(const Method& method, const CacheRows& rows, std::int64_t entries) {
  const auto all = [&](std::int64_t n) {
    return rows.keys(n) + rows.values(n) + rows.side(n) + rows.other(n);
  };
  return method.fixed_rows() ? all(entries) - all(0) : all(entries);
}

std::vector<LayerClass> columns_of(const BlockSizes& sizes) {
  std::vector<LayerClass> columns;
  for (std::size_t l = 0; l < sizes.layer_classes(); ++l) {
    columns.push_back({.first = sizes.layer_class(l).layers.layer,
                       .count = sizes.layer_class(l).layers.layers,
                       .size_class = static_cast<std::int32_t>(l)});
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

BlockSizes::BlockSizes(const CostInput& in, std::span<const LayerSpan> layer_classes,
                       std::optional<GroupSizes> groups)
    : groups_{std::move(groups)}, block_{in.stack->block_tokens} {
  KVSIM_CHECK(!layer_classes.empty() && block_ >= 1,
              "a cache of {} layer classes in blocks of {} entries", layer_classes.size(), block_);
  CostInput one = in;
  one.batch = 1;
  one.prompt = 0;
  rows_ = block_;
  plain_ = in.method->plain_rows() || in.method->fixed_rows();
  for (const LayerSpan& l : layer_classes) {
    const CacheRows rows{one, l.layer};
    const Bytes bytes = rows_of(*in.method, rows, block_);
    plain_ = plain_ && rows_of(*in.method, rows, 2 * block_) == bytes * 2;
    const AttentionSpec& attention = in.llm->layers[static_cast<std::size_t>(l.layer)].attention;
    const std::int64_t limit = held_limit(*in.stack, attention);
    windowed_ = windowed_ || limit > 0;
    holds_unseen_ = holds_unseen_ || (limit == 0 && entry_limit(attention) > 0);
    has_other_ = has_other_ || rows.has_other();
    layer_classes_.push_back({.layers = l,
                              .limit = limit,
                              .sees = entry_limit(attention),
                              .units = (bytes * l.layers).count(),
                              .other = rows.items()});
  }
  for (LayerClass& l : layer_classes_) {
    if (plain_ && !has_other_) break;
    // Packed rows and the method's side data are added at the end of the prompt.
    const AttentionSpec& a = in.llm->layers[static_cast<std::size_t>(l.layers.layer)].attention;
    l.units = (recorded_bytes(a, block_, in.kv_dtype) * l.layers.layers).count();
  }
  per_head_ = in.stack->per_head_blocks;
  plain_ = plain_ && !has_other_;
  counts_blocks_ =
      !groups_ && layer_classes_.size() == 1 && plain_ && !(per_head_ && in.method->ragged());
  if (counts_blocks_) {
    unit_ = Bytes{layer_classes_.front().units};
    layer_classes_.front().units = 1;
  }
  block_units_ = 0;
  double grows = 0;  // of data other than rows, in bytes
  for (const LayerClass& l : layer_classes_) {
    block_units_ += l.units;
    for (const CacheItem& item : l.other) {
      grows += item.per_token() * static_cast<double>(block_ * l.layers.layers);
    }
  }
  if (has_other_) block_units_ += std::max<std::int64_t>(1, std::llround(grows));
  if (groups_) {
    block_ = groups_->block_tokens();
    block_units_ = std::max<std::int64_t>(1, groups_->full_ids());
    unit_ = groups_->id();
  }
  if (!groups_ && !windowed_ && !has_other_ &&
      std::has_single_bit(static_cast<std::uint64_t>(rows_))) {
    // Division by a power of two is exact, and so is the sum.
    std::int64_t block_bytes = 0;
    for (const LayerClass& l : layer_classes_) block_bytes += l.units * unit_.count();
    if (block_bytes % rows_ == 0) bytes_per_token_ = Bytes{block_bytes / rows_};
  }
}

Bytes BlockSizes::LayerClass::other_bytes(std::int64_t tokens) const {
  double one = 0;
  for (const CacheItem& item : other) one += item.held(tokens);
  return Bytes{static_cast<std::int64_t>(std::ceil(one))} * layers.layers;
}

std::int64_t BlockSizes::prompt_units(std::int64_t tokens, std::int64_t chunk) const {
  if (groups_) return groups_->ids(tokens, chunk);
  const std::int64_t blocks = divide_up(tokens, block_);
  if (!windowed_ && !has_other_) return blocks * block_units_;
  std::int64_t units = 0;
  for (const LayerClass& l : layer_classes_) {
    const std::int64_t reach = divide_up(l.limit - 1 + chunk, block_) + 1;
    units += l.units * (l.limit > 0 ? std::min(blocks, reach) : blocks) +
             l.other_bytes(blocks * block_).count();
  }
  return units;
}

Bytes BlockSizes::prompt_logical(std::int64_t tokens) const {
  if (bytes_per_token_ > Bytes{}) return bytes_per_token_ * tokens;
  double units = 0;
  for (const LayerClass& l : layer_classes_) {
    const std::int64_t held = within_limit(l.limit, tokens);
    units += static_cast<double>(l.units) * static_cast<double>(held) / static_cast<double>(rows_);
    units += static_cast<double>(l.other_bytes(tokens).count());
  }
  if (groups_) return truncated<Bytes>(units);
  return truncated<Bytes>(units * static_cast<double>(unit_.count()));
}

SequenceFootprint::SequenceFootprint(std::shared_ptr<const Method> method, const CostInput& base,
                                     const BlockSizes& sizes, std::int64_t prompt, bool offloads)
    : method_{std::move(method)},
      in_{input_for(base, *method_, prompt)},
      sizes_{&sizes},
      prompt_{prompt},
      columns_{columns_of(sizes)},
      trajectory_{in_, columns_, prompt, DecodeSegments::Lines::kOfEntries},
      all_layers_{method_->prefill_peak() == PrefillPeak::kAllLayers},
      known_units_(sizes.layer_classes()),
      offloads_{offloads},
      ragged_{method_->ragged()} {
  if (in_.stack->lazy_compaction)
    holes_ = std::make_unique<FragmentedBlocks>(sizes.layer_classes());
  for (const LayerClass& column : columns_) {
    rows_.push_back(std::make_unique<CacheRows>(in_, column.first));
    const std::int64_t kept = trajectory_.prompt_entries(column);
    const auto layer_class = static_cast<std::size_t>(column.size_class);
    const bool windowed = sizes.layer_class(layer_class).limit > 0;
    heads_after(layer_class, 0, after_);
    if (holes_) {
      const std::vector<std::int64_t> written(after_.size(), prompt);
      if (!windowed && !closes_holes(written, after_, sizes.block_tokens(), sizes.per_head())) {
        after_ = written;
      }
      holes_->start(layer_class, after_);
    }
    compresses_prompt_ = compresses_prompt_ || (after_.front() < prompt && !windowed) ||
                         (!holes_ && kept < prompt && !windowed);
    kept_units_ += windowed && kept < prompt ? units_of(layer_class, after_.front(), true)
                                             : units_of(layer_class, after_);
  }
  if (const GroupSizes* groups = sizes.groups()) {
    kept_units_ = groups->ids(prompt, 1);
    compresses_prompt_ = false;
    return;
  }
  if (trajectory_.appends() && sizes.plain() && !sizes.windowed() && !holes_ && !ragged_ &&
      !offloads_) {
    tabulate();
  }
  // Rows that are packed or moved after prefill take less memory than the computed ones.
  if (!sizes.windowed() && kept_units_ < sizes.prompt_units(prompt, prompt)) {
    compresses_prompt_ = true;
  }
}

void SequenceFootprint::tabulate() {
  const std::int64_t block = sizes_->block_tokens();
  for (std::int64_t place = 0; place < block; ++place) {
    std::int64_t units = 0;
    for (std::size_t l = 0; l < columns_.size(); ++l) {
      units += units_of(l, trajectory_.prompt_entries(columns_[l]) + place, false);
    }
    places_.push_back({.units = units});
  }
  for (std::size_t l = 0; l < columns_.size(); ++l) per_block_ += sizes_->layer_class(l).units;
  std::int64_t next = places_.front().units + per_block_;
  for (std::size_t place = places_.size(); place-- > 0; next = places_[place].units) {
    if (places_[place].units != next) continue;
    places_[place].same = place + 1 < places_.size() ? places_[place + 1].same + 1 : 1;
  }
  bool lines = true;
  for (const auto& rows : rows_) {
    rows->fit_side_bytes();
    lines = lines && rows->side_is_line() && !rows->has_other();
  }
  if (!lines) return;
  logical_start_ = logical(0);
  logical_each_ = logical(1) - logical_start_;
}

std::int64_t SequenceFootprint::units_of(std::size_t l, std::int64_t entries, bool straddles) {
  const BlockSizes::LayerClass& layer_class = sizes_->layer_class(l);
  const std::int64_t block = sizes_->block_tokens();
  const std::int64_t blocks = divide_up(entries, block) + (straddles ? 1 : 0);
  if (sizes_->plain()) return blocks * layer_class.units;
  std::vector<std::int64_t>& known = known_units_[l];
  const auto at = static_cast<std::size_t>(blocks);
  if (at >= known.size()) known.resize(at + 1, -1);
  if (known[at] < 0) {
    // Formats that pack rows in groups take most memory just before a group is full.
    Bytes max;
    for (std::int64_t e = std::max<std::int64_t>(0, (blocks - 1) * block + 1); e <= blocks * block;
         ++e) {
      max = std::max(max, in_hbm(l, e, blocks * block));
    }
    known[at] = (max * layer_class.layers.layers).count();
  }
  return known[at];
}

double SequenceFootprint::read_of(std::size_t l, std::int64_t entries) const {
  const CacheRows& rows = *rows_[l];
  const auto all = static_cast<double>(entries);
  const auto bytes = static_cast<double>((rows.keys(entries) + rows.values(entries)).count());
  if (bytes <= 0) return all;
  const StepTraffic step =
      method_->decode_traffic(columns_[l].first, rows.shape(), in_.kv_dtype, all, false);
  return std::min(all, step.attention_read / bytes * all);
}

Bytes SequenceFootprint::in_hbm(std::size_t l, std::int64_t entries, std::int64_t room) const {
  const CacheRows& rows = *rows_[l];
  if (!offloads_) return rows_of(*method_, rows, entries);
  const auto read = static_cast<std::int64_t>(std::ceil(read_of(l, entries) - kRounding));
  const std::int64_t block = sizes_->block_tokens();
  const std::int64_t stays =
      read >= entries ? entries : std::min(room, divide_up(read, block) * block);
  return rows.keys(stays) + rows.values(stays) + rows.side(entries) + rows.other(entries);
}

Bytes SequenceFootprint::own_host(std::size_t l, std::int64_t step, std::int64_t entries) const {
  const std::int32_t layer = columns_[l].first;
  const LayerShape& shape = rows_[l]->shape();
  if (const auto bytes =
          method_->layer_bytes(layer, shape, in_.kv_dtype, prompt_, prompt_ + step)) {
    return bytes->host;
  }
  const std::int64_t of_prompt = std::min(entries, trajectory_.prompt_entries(columns_[l]));
  return method_->rows_bytes(layer, shape, in_.kv_dtype, of_prompt, entries).host;
}

Bytes SequenceFootprint::outside(std::int64_t step) {
  Bytes sum;
  for (std::size_t l = 0; l < columns_.size(); ++l) {
    const std::int64_t entries =
        step > 0 ? moment(l, step).after : trajectory_.prompt_entries(columns_[l]);
    Bytes one = own_host(l, step, entries);
    if (offloads_ && read_of(l, entries) < static_cast<double>(entries)) {
      one += rows_[l]->keys(entries) + rows_[l]->values(entries);
    }
    sum += one * columns_[l].count;
  }
  return sum;
}

double SequenceFootprint::fetched(std::int64_t step) {
  double sum = 0;
  for (std::size_t l = 0; offloads_ && l < columns_.size(); ++l) {
    const std::int64_t entries = moment(l, step).after;
    const double read = read_of(l, entries);
    if (read >= static_cast<double>(entries)) continue;
    const auto bytes =
        static_cast<double>((rows_[l]->keys(entries) + rows_[l]->values(entries)).count());
    sum += bytes * read / static_cast<double>(entries) * columns_[l].count;
  }
  return sum;
}

std::int64_t SequenceFootprint::units_of(std::size_t l, std::span<const std::int64_t> heads) {
  if (!sizes_->per_head() || heads.size() == 1) return units_of(l, heads.front(), false);
  std::int64_t sum = 0;
  for (const std::int64_t entries : heads) sum += units_of(l, entries, false);
  return divide_up(sum, std::ssize(heads));
}

void SequenceFootprint::heads_after(std::size_t l, std::int64_t step,
                                    std::vector<std::int64_t>& heads) {
  if (!ragged_ || rows_[l]->stored_heads() == 0) {
    heads.assign(1, step > 0 ? moment(l, step).after : trajectory_.prompt_entries(columns_[l]));
    return;
  }
  heads.resize(static_cast<std::size_t>(rows_[l]->stored_heads()));
  method_->heads_held(columns_[l].first, prompt_, prompt_ + step, heads);
  for (std::int64_t& head : heads) head = within_limit(sizes_->layer_class(l).limit, head);
}

void SequenceFootprint::seek(std::int64_t step) {
  if (step > reached_) {
    reached_ = step + kStepsAhead;
    trajectory_.extend(in_, reached_);
  }
  segment_ = trajectory_.segment_of(step);
}

void SequenceFootprint::keep(std::int64_t step, const Step& answer) {
  constexpr std::size_t kMaxSteps = std::size_t{1} << 16U;
  const auto at = static_cast<std::size_t>(step);
  if (at >= kMaxSteps) return;
  if (at >= steps_.size()) steps_.resize(at + static_cast<std::size_t>(kStepsAhead));
  steps_[at] = answer;
}

SequenceFootprint::Step SequenceFootprint::computed_units(std::int64_t step) {
  if (const GroupSizes* groups = sizes_->groups()) {
    const std::int64_t held = groups->ids(prompt_ + step, 1);
    return {.during = held, .after = held, .until = groups->same_until(prompt_ + step) - prompt_};
  }
  if (!places_.empty()) {
    const std::int64_t block = sizes_->block_tokens();
    const Place& place = places_[static_cast<std::size_t>(step % block)];
    const std::int64_t held = place.units + step / block * per_block_;
    return {.during = held, .after = held, .until = step + place.same};
  }
  Step out;
  (void)moment(0, step);
  const std::int64_t last = trajectory_.segments()[segment_].last;
  const std::int64_t block = sizes_->block_tokens();
  out.until = last;
  for (std::size_t l = 0; l < columns_.size(); ++l) {
    const bool windowed = sizes_->layer_class(l).limit > 0;
    if (holes_ && !windowed) {
      add_lazy(l, step, out);
      continue;
    }
    if (ragged_) {
      add_ragged(l, step, out);
      continue;
    }
    const DecodeState m = moment(l, step);
    // A window's blocks start at any offset within a block; methods that drop entries write
    // survivors from the start of a block.
    const bool straddles = windowed && m.after < m.before + 1 && !m.evicts;
    const std::int64_t within = m.change == CacheChange::kOverwrite ? m.after : m.before + 1;
    const std::int64_t during = std::max(within, m.after);
    out.after += units_of(l, m.after, straddles);
    out.during += units_of(l, during, straddles);
    out.evicts = out.evicts || m.evicts;
    if (moment(l, last).after == m.after) continue;
    // It grows by one entry per step, up to the end of its last block.
    for (const std::int64_t entries : {m.after, during}) {
      out.until = std::min(out.until, step + divide_up(entries, block) * block - entries);
    }
  }
  return out;
}

void SequenceFootprint::add_ragged(std::size_t l, std::int64_t step, Step& out) {
  const DecodeState m = moment(l, step);
  heads_after(l, step - 1, before_);
  heads_after(l, step, after_);
  const bool straddles = sizes_->layer_class(l).limit > 0 && m.after < m.before + 1 && !m.evicts;
  if (straddles) {  // all heads of a window slide together
    out.after += units_of(l, after_.front(), true);
    out.during += units_of(l, after_.front(), true);
  } else {
    out.after += units_of(l, after_);
    for (std::size_t h = 0; h < before_.size(); ++h) {
      const std::int64_t within = m.change == CacheChange::kOverwrite ? after_[h] : before_[h] + 1;
      before_[h] = std::max(within, after_[h]);
    }
    out.during += units_of(l, before_);
  }
  out.evicts = out.evicts || m.evicts;
  out.until = step;
}

void SequenceFootprint::add_lazy(std::size_t l, std::int64_t step, Step& out) {
  while (holes_->reached(l) < step) {
    heads_after(l, holes_->reached(l) + 1, after_);
    holes_->add(l, after_, sizes_->block_tokens(), sizes_->per_head());
  }
  holes_->within(l, step, before_);
  out.during += units_of(l, before_);
  const FragmentedBlocks::Stretch& stretch = holes_->after(l, step);
  const bool closes = stretch.from == step;
  out.after += units_of(l, closes ? std::span{stretch.heads} : std::span{before_});
  out.evicts = out.evicts || closes;
  out.until = step;
}

SequenceFootprint::Attended SequenceFootprint::attended(std::size_t l, std::int64_t step) {
  const DecodeState m = moment(l, step);
  const auto mean = static_cast<double>(m.attended);
  const bool lazy = holes_ && sizes_->layer_class(l).limit == 0;
  if (!lazy && !ragged_) return {.mean = mean};
  if (lazy) {
    (void)units(step);  // the layout is known up to here
    holes_->within(l, step, before_);
  } else {
    heads_after(l, step - 1, before_);
    for (std::int64_t& head : before_) ++head;
  }
  const auto longest = static_cast<double>(before_.front());
  if (!sizes_->per_head()) return {.mean = std::max(mean, longest)};
  // Only of the heads on this GPU.
  double rows = 0;
  for (const std::int64_t head : before_) rows += static_cast<double>(head);
  rows /= static_cast<double>(before_.size());
  return {.mean = lazy ? std::max(mean, rows) : rows, .longest = ragged_ ? longest : 0};
}

std::optional<double> SequenceFootprint::moved_together(std::size_t l, std::int64_t step) {
  if (!holes_ || sizes_->layer_class(l).limit > 0) return std::nullopt;
  (void)units(step);
  const FragmentedBlocks::Stretch& stretch = holes_->after(l, step);
  if (stretch.from != step) return 0.0;
  double rows = 0;
  for (const std::int64_t head : stretch.heads) rows += static_cast<double>(head);
  return rows / static_cast<double>(stretch.heads.size());
}

Bytes SequenceFootprint::logical(std::int64_t step) {
  if (logical_each_ > Bytes{}) return logical_start_ + logical_each_ * step;
  Bytes sum;
  for (std::size_t l = 0; l < columns_.size(); ++l) {
    heads_after(l, step, after_);
    Bytes heads;
    for (const std::int64_t entries : after_) heads += in_hbm(l, entries, entries);
    sum += Bytes{(heads * columns_[l].count).count() / std::ssize(after_)};
  }
  return sum;
}

Bytes SequenceFootprint::full_logical(std::int64_t step) {
  Bytes sum;
  for (std::size_t l = 0; l < columns_.size(); ++l) {
    sum +=
        rows_of(*method_, *rows_[l], within_limit(sizes_->layer_class(l).limit, prompt_ + step)) *
        columns_[l].count;
  }
  return sum;
}

std::int64_t SequenceFootprint::full_units(std::int64_t step) {
  if (const GroupSizes* groups = sizes_->groups()) return groups->ids(prompt_ + step, 1);
  std::int64_t sum = 0;
  for (std::size_t l = 0; l < columns_.size(); ++l) {
    const std::int64_t tokens = prompt_ + step;
    const std::int64_t held = within_limit(sizes_->layer_class(l).limit, tokens);
    sum += units_of(l, held, held < tokens);
  }
  return sum;
}

std::int64_t SequenceFootprint::max_units(std::int64_t steps) {
  std::int64_t max = kept_units_;
  if (const GroupSizes* groups = sizes_->groups()) {
    // Windows hold most during prefill; how much of it at once depends on the scheduler.
    return std::max({max, groups->ids(prompt_, 2), groups->ids(prompt_ + steps, 1)});
  }
  if (all_layers_ || !compresses_prompt_) {
    max = std::max(max, sizes_->windowed() ? kept_units_ : sizes_->prompt_units(prompt_, prompt_));
  }
  if (steps < 1) return max;
  if (holes_) {
    while (std::ssize(max_within_) < steps) {
      const std::int64_t within = units(std::ssize(max_within_) + 1).during;
      max_within_.push_back(max_within_.empty() ? within : std::max(max_within_.back(), within));
    }
    return std::max(max, max_within_[static_cast<std::size_t>(steps - 1)]);
  }
  (void)moment(0, steps);
  for (const DecodeSegments::Segment& s : trajectory_.segments()) {
    if (s.first > steps) break;
    max = std::max({max, units(s.first).during, units(std::min(s.last, steps)).during});
  }
  return max;
}

SequenceFootprints::SequenceFootprints(MethodSpec method, MethodContext site,
                                       std::shared_ptr<const MeasuredLaw> measured, CostInput base)
    : method_{std::move(method)},
      site_{std::move(site)},
      measured_{std::move(measured)},
      base_{base} {}

std::shared_ptr<const Method> SequenceFootprints::resolve(std::int64_t prompt) const {
  std::shared_ptr<const Method> method = make_method(method_, prompt, site_);
  if (base_.stack->masks_evicted) return masked(std::move(method));
  if (measured_) return with_measured_law(std::move(method), *measured_, base_.llm->n_layers());
  const std::int32_t heads = method->stored_heads(site_.shape);
  if (auto law = expected_law(*method, prompt, base_.llm->n_layers(), heads)) {
    return with_measured_law(std::move(method), std::move(*law), base_.llm->n_layers());
  }
  return method;
}

std::shared_ptr<const Method> SequenceFootprints::resolve_or_full(std::int64_t prompt) {
  try {
    return resolve(prompt);
  } catch (const InputError& e) {
    if (unresolved_.lengths == 0) unresolved_ = {0, prompt, prompt, e.what()};
    if (unresolved_lengths_.insert(prompt).second) ++unresolved_.lengths;
    unresolved_.shortest = std::min(unresolved_.shortest, prompt);
    unresolved_.longest = std::max(unresolved_.longest, prompt);
    return make_method({"full", {}, {}}, prompt, site_);
  }
}

SequenceFootprint& SequenceFootprints::at(std::int64_t prompt, const BlockSizes& sizes) {
  std::unique_ptr<SequenceFootprint>& footprint = footprints_[prompt];
  if (!footprint) {
    if (footprints_.size() > kMaxFootprints) {
      std::erase_if(footprints_, [&](const auto& known) {
        return known.first != prompt && known.second->users == 0;
      });
    }
    footprints_[prompt] = std::make_unique<SequenceFootprint>(resolve_or_full(prompt), base_, sizes,
                                                              prompt, offloads_);
  }
  return *footprints_.at(prompt);
}

}  // namespace kvsim
