#include "models/methods/view/entry_table.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "models/math/merging/residual_merge.hpp"
#include "models/units/check.hpp"

namespace kvsim {

void EntryTable::reserve(std::int32_t entries) {
  keys_.reserve(index(entries) * d_);
  values_.reserve(index(entries) * d_);
  ids_.reserve(index(entries));
  merged_.reserve(index(entries));
  versions_.reserve(index(entries));
}

std::int32_t EntryTable::append(std::int32_t id, std::span<const float> key,
                                std::span<const float> value) {
  KVSIM_CHECK(key.size() == d_ && value.size() == d_, "row of {} and {}", key.size(), value.size());
  keys_.insert(keys_.end(), key.begin(), key.end());
  values_.insert(values_.end(), value.begin(), value.end());
  if (slots_.size() <= index(id)) slots_.resize(index(id) + 1, -1);
  KVSIM_CHECK(slots_[index(id)] < 0, "entry {} exists already", id);
  slots_[index(id)] = size();
  ids_.push_back(id);
  merged_.push_back(-1);
  versions_.push_back(next_version_++);
  return size() - 1;
}

std::int32_t EntryTable::append_merged(std::vector<std::int32_t> members,
                                       std::span<const double> key, std::span<const double> value,
                                       bool pinned) {
  KVSIM_CHECK(!members.empty(), "a merged entry without members");
  const std::vector<float> row(d_, 0.0F);
  const std::int32_t slot = append(members.front(), row, row);
  Merged group{.members = std::move(members),
               .key_mean = {key.begin(), key.end()},
               .value_mean = {value.begin(), value.end()},
               .weight = 1.0,
               .pinned = pinned};
  group.weight = static_cast<double>(group.members.size());
  merged_[index(slot)] = static_cast<std::int32_t>(groups_.size());
  groups_.push_back(std::move(group));
  ++n_merged_;
  if (pinned) ++n_pinned_;
  write_mean(slot);
  return slot;
}

void EntryTable::erase(std::int32_t slot) {
  KVSIM_CHECK(slot >= 0 && slot < size(), "slot {} of {}", slot, size());
  KVSIM_CHECK(!is_pinned(slot), "a pinned entry leaves");
  if (is_merged(slot)) {
    groups_[index(merged_[index(slot)])] = {};
    --n_merged_;
  }
  keep_past(slot);
  slots_[index(id(slot))] = -1;
  const std::int32_t last = size() - 1;
  if (slot != last) {
    std::copy_n(keys_.data() + index(last) * d_, d_, keys_.data() + index(slot) * d_);
    std::copy_n(values_.data() + index(last) * d_, d_, values_.data() + index(slot) * d_);
    versions_[index(slot)] = versions_[index(last)];
    ids_[index(slot)] = ids_[index(last)];
    merged_[index(slot)] = merged_[index(last)];
    slots_[index(id(slot))] = slot;
  }
  keys_.resize(keys_.size() - d_);
  values_.resize(values_.size() - d_);
  ids_.pop_back();
  merged_.pop_back();
  versions_.pop_back();
}

void EntryTable::start_versions() {
  std::iota(versions_.begin(), versions_.end(), 0U);
  seen_ = next_version_ = static_cast<std::uint32_t>(versions_.size());
  past_ = {};
  recording_ = true;
}

void EntryTable::stop_versions() {
  recording_ = false;
  past_ = {};
}

void EntryTable::keep_past(std::int32_t slot) {
  if (!recording_ || versions_[index(slot)] >= seen_) return;
  past_.versions.push_back(versions_[index(slot)]);
  const auto old_key = key(slot);
  const auto old_value = value(slot);
  past_.keys.insert(past_.keys.end(), old_key.begin(), old_key.end());
  past_.values.insert(past_.values.end(), old_value.begin(), old_value.end());
}

void EntryTable::pin(std::int32_t slot) {
  KVSIM_CHECK(!is_merged(slot), "slot {} is merged already", slot);
  Merged group;
  group.members = {id(slot)};
  group.key_mean.assign(key(slot).begin(), key(slot).end());
  group.value_mean.assign(value(slot).begin(), value(slot).end());
  merged_[index(slot)] = static_cast<std::int32_t>(groups_.size());
  groups_.push_back(std::move(group));
  ++n_merged_;
  ++n_pinned_;
}

void EntryTable::merge_into(std::int32_t into, std::span<const std::int32_t> from,
                            std::span<const double> key, std::span<const double> value,
                            double weight) {
  KVSIM_CHECK(key.size() == d_ && value.size() == d_, "row of {} and {}", key.size(), value.size());
  const std::int32_t into_id = id(into);
  if (!is_merged(into)) {
    merged_[index(into)] = static_cast<std::int32_t>(groups_.size());
    groups_.push_back(
        {.members = {into_id}, .key_mean = {}, .value_mean = {}, .weight = 1.0, .pinned = false});
    ++n_merged_;
  }
  const auto group = index(merged_[index(into)]);
  groups_[group].key_mean.assign(key.begin(), key.end());
  groups_[group].value_mean.assign(value.begin(), value.end());
  groups_[group].weight = weight;
  write_mean(into);
  for (const std::int32_t each : from) {
    const std::int32_t slot = slot_of(each);
    KVSIM_CHECK(slot >= 0 && each != into_id, "merge of entry {} into {}", each, into_id);
    const std::vector<std::int32_t> more = members(slot);
    std::vector<std::int32_t> all;
    std::merge(groups_[group].members.begin(), groups_[group].members.end(), more.begin(),
               more.end(), std::back_inserter(all));
    groups_[group].members = std::move(all);
    erase(slot);
  }
}

void EntryTable::merge_mean(std::int32_t into, std::int32_t from, std::int32_t weight_cap) {
  KVSIM_CHECK(is_merged(into) && !is_merged(from), "merge of slot {} into {}", from, into);
  Merged& group = groups_[index(merged_[index(into)])];
  const double weight = std::min(count(into), weight_cap);
  group.weight += 1.0;
  group.members.insert(std::upper_bound(group.members.begin(), group.members.end(), id(from)),
                       id(from));
  join_mean(group.key_mean, key(from), weight);
  join_mean(group.value_mean, value(from), weight);
  write_mean(into);
  erase(from);
}

void EntryTable::write_mean(std::int32_t slot) {
  const Merged& group = groups_[index(merged_[index(slot)])];
  const std::span<float> key = mutable_key(slot);
  const std::span<float> value = mutable_value(slot);
  for (std::size_t j = 0; j < d_; ++j) {
    key[j] = static_cast<float>(group.key_mean[j]);
    value[j] = static_cast<float>(group.value_mean[j]);
  }
}

std::int32_t EntryTable::count(std::int32_t slot) const {
  const std::int32_t group = merged_[index(slot)];
  return group < 0 ? 1 : static_cast<std::int32_t>(groups_[index(group)].members.size());
}

std::vector<std::int32_t> EntryTable::members(std::int32_t slot) const {
  const std::int32_t group = merged_[index(slot)];
  return group < 0 ? std::vector{id(slot)} : groups_[index(group)].members;
}

std::vector<std::int32_t> EntryTable::merged_slots() const {
  std::vector<std::int32_t> slots;
  if (n_merged_ == 0) return slots;
  for (std::int32_t slot = 0; slot < size(); ++slot) {
    if (is_merged(slot)) slots.push_back(slot);
  }
  std::sort(slots.begin(), slots.end(),
            [this](auto a, auto b) { return merged_[index(a)] < merged_[index(b)]; });
  return slots;
}

}  // namespace kvsim
