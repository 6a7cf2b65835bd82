#include "sim/batch/point/decode_segments.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "models/llm/layer/layer_kind.hpp"
#include "models/units/check.hpp"

namespace kvsim {

std::vector<LayerClass> layer_columns(const std::vector<LayerGroup>& groups,
                                      bool has_equal_layers) {
  std::vector<LayerClass> columns;
  std::int32_t size_classes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const LayerGroup& group = groups[g];
    const std::int32_t width = has_equal_layers ? group.count : 1;
    for (std::int32_t l = group.first; l < group.first + group.count; l += width) {
      const auto same = std::find_if(columns.begin(), columns.end(), [&](const LayerClass& other) {
        return has_equal_layers && other.first_equal == group.first_equal;
      });
      columns.push_back({.first = l,
                         .count = width,
                         .group = static_cast<std::int32_t>(g),
                         .first_equal = group.first_equal,
                         .size_class = same == columns.end() ? size_classes++ : same->size_class});
    }
  }
  return columns;
}

DecodeSegments::DecodeSegments(const CostInput& in, const std::vector<LayerClass>& columns,
                               std::int64_t prompt, Lines lines)
    : prompt_{prompt} {
  for (const LayerClass& column : columns) {
    if (static_cast<std::size_t>(column.size_class) < first_layers_.size()) continue;
    first_layers_.push_back(column.first);
    kept_.push_back(held_entries(in, column.first, prompt, prompt));
  }
  held_ = kept_;
  bool appends = in.method->appends_in_decode() && !in.stack->attends_allocated;
  for (const LayerClass& column : columns) {
    appends = appends && caches_rows(in.llm->layers[static_cast<std::size_t>(column.first)]);
  }
  appends_ = appends;
  if (appends) straight_from_ = 1;
  for (std::size_t c = 0; c < first_layers_.size(); ++c) {
    const auto layer = static_cast<std::size_t>(first_layers_[c]);
    const std::int64_t limit = entry_limit(in.llm->layers[layer].attention);
    bounded_.push_back(limit > 0);
    grows_.push_back(held_limit(*in.stack, in.llm->layers[layer].attention) == 0);
    if (limit == 0) continue;
    if (appends) straight_from_ = std::max(*straight_from_, limit - kept_[c] + 1);
    appends_ = false;
  }
  if (lines == Lines::kOfEntries || in.method->plain_rows()) return;
  std::vector<StorageTrend::Layer> distinct;
  std::set<std::pair<std::int32_t, std::int32_t>> known;  // size class and kind
  for (const LayerClass& column : columns) {
    if (!known.insert({column.size_class, column.first_equal}).second) continue;
    distinct.push_back({.first = column.first, .size_class = column.size_class});
  }
  format_.emplace(std::move(distinct));
}

void DecodeSegments::extend(const CostInput& in, std::int64_t step) {
  const std::size_t n = first_layers_.size();
  for (; reached_ < step; ++reached_) {
    if (is_straight()) {
      segments_.back().last = step;
      for (std::size_t c = 0; c < n; ++c) {
        if (grows_[c]) held_[c] += step - reached_;
      }
      reached_ = step;
      break;
    }
    const std::int64_t at = reached_ + 1;
    now_.clear();
    for (std::size_t c = 0; c < n; ++c) {
      now_.push_back(decode_moment(in, first_layers_[c], prompt_, prompt_ + at, held_[c]));
    }
    const auto rises = [](std::int64_t from, std::int64_t to) {
      return to == from || to == from + 1;
    };
    const FormatPath path = format_ ? format_->next(in, prompt_, now_) : FormatPath::kLine;
    bool joins = path != FormatPath::kBroken && !segments_.empty();
    const bool second = joins && segments_.back().first == segments_.back().last;
    for (std::size_t c = 0; joins && c < n; ++c) {
      Line& line = lines_[lines_.size() - n + c];
      const DecodeState& m = now_[c];
      if (!second) {
        joins = line.at(at - segments_.back().first) == m;
        continue;
      }
      const DecodeState& s = line.start;
      joins = s.change == m.change && s.evicts == m.evicts && rises(s.attended, m.attended) &&
              rises(s.before, m.before) && rises(s.after, m.after);
      line.attended = static_cast<std::int8_t>(m.attended != s.attended);
      line.before = static_cast<std::int8_t>(m.before != s.before);
      line.after = static_cast<std::int8_t>(m.after != s.after);
    }
    if (joins) {
      segments_.back().last = at;
      segments_.back().stairs = path == FormatPath::kMonotonicSteps;
    } else {
      segments_.push_back({.first = at, .last = at});
      for (const DecodeState& m : now_) lines_.push_back({.start = m});
      if (format_) format_->start();
    }
    for (std::size_t c = 0; c < n; ++c) held_[c] = now_[c].after;
  }
}

bool DecodeSegments::is_straight() const {
  if (!straight_from_ || format_ || segments_.empty()) return false;
  const Segment& last = segments_.back();
  if (last.first < *straight_from_ || last.first == last.last) return false;
  for (std::size_t c = 0; c < bounded_.size(); ++c) {
    if (bounded_[c] && lines_[lines_.size() - bounded_.size() + c].attended != 0) return false;
  }
  return true;
}

std::size_t DecodeSegments::segment_of(std::int64_t step) const {
  KVSIM_CHECK(step >= 1 && step <= reached_, "step {} of {} known", step, reached_);
  const auto after = std::upper_bound(segments_.begin(), segments_.end(), step,
                                      [](std::int64_t n, const Segment& s) { return n < s.first; });
  return static_cast<std::size_t>(after - segments_.begin()) - 1;
}

}  // namespace kvsim
