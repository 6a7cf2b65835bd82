#include "models/methods/store/row_store.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace kvsim {
namespace {

class RowStore final : public Store {
 public:
  RowStore(const RowRule& rule, const SessionPlace& place, Dtype recorded)
      : rule_{rule},
        recorded_{recorded},
        head_dim_{place.head_dim},
        format_{rule.format(place, recorded)} {}
  void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) override {
    format_->calibrate(entries, scores, head);
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) rewritten(entries, slot);
  }
  void appended(EntryTable& entries, std::int32_t slot) override { rewritten(entries, slot); }
  void rewritten(EntryTable& entries, std::int32_t slot) override {
    format_->round_entry(entries, slot);
  }
  Bytes kv_bytes(const EntryTable& entries) const override {
    return rule_.kv_bytes(entries.size(), entries.size(), head_dim_, recorded_);
  }

 private:
  const RowRule& rule_;
  Dtype recorded_;
  std::int32_t head_dim_;
  std::unique_ptr<RowFormat> format_;
};

class EndsStore final : public Store {
 public:
  EndsStore(const EndsRule& rule, const SessionPlace& place, Dtype recorded)
      : rule_{rule},
        recorded_{recorded},
        head_dim_{place.head_dim},
        format_{rule.format(place, recorded)},
        is_rounded_(static_cast<std::size_t>(std::max(place.tokens, 0)), false) {}
  void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) override {
    format_->calibrate(entries, scores, head);
    for (const std::int32_t id : entries.ids()) wait(id);
    std::sort(waiting_.begin(), waiting_.end());
    round_aged(entries);
  }
  void appended(EntryTable& entries, std::int32_t slot) override {
    wait(entries.id(slot));
    round_aged(entries);
  }
  void rewritten(EntryTable& entries, std::int32_t slot) override {
    if (is_rounded(entries.id(slot))) format_->round_entry(entries, slot);
  }
  void leaving(const EntryTable& /*entries*/, std::int32_t id) override {
    if (is_rounded(id)) {
      is_rounded_[static_cast<std::size_t>(id)] = false;
      --rounded_;
    } else {
      waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), id), waiting_.end());
    }
  }
  Bytes kv_bytes(const EntryTable& entries) const override {
    return rule_.rounded_bytes(rounded_, head_dim_, recorded_) +
           bytes_of(2 * (entries.size() - rounded_) * head_dim_, recorded_);
  }

 private:
  [[nodiscard]] bool is_rounded(std::int32_t id) const {
    return static_cast<std::size_t>(id) < is_rounded_.size() &&
           is_rounded_[static_cast<std::size_t>(id)];
  }
  void wait(std::int32_t id) {
    if (!format_->keeps(id, rule_.ends().first)) waiting_.push_back(id);
  }
  void round_aged(EntryTable& entries) {
    const std::size_t last = static_cast<std::size_t>(rule_.ends().last);
    const std::size_t aged = waiting_.size() > last ? waiting_.size() - last : 0;
    for (std::size_t i = 0; i < aged; ++i) {
      format_->round_entry(entries, entries.slot_of(waiting_[i]));
      const auto at = static_cast<std::size_t>(waiting_[i]);
      if (at >= is_rounded_.size()) is_rounded_.resize(at + 1, false);
      is_rounded_[at] = true;
    }
    rounded_ += static_cast<std::int64_t>(aged);
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(aged));
  }

  const EndsRule& rule_;
  Dtype recorded_;
  std::int32_t head_dim_;
  std::unique_ptr<RowFormat> format_;
  std::vector<bool> is_rounded_;  // by id
  std::int64_t rounded_ = 0;
  std::vector<std::int32_t> waiting_;  // ids that may still be rounded, ascending
};

}  // namespace

std::vector<ParamInfo> ends_params(std::int64_t first, std::int64_t last,
                                   const std::string& source) {
  return {integer_param("full_first", "", first, 0, kManyEntries, "an integer >= 0",
                        "first tokens kept in the recorded format", source),
          integer_param("full_last", "", last, 0, kManyEntries, "an integer >= 0",
                        "newest tokens kept in the recorded format", source)};
}

void check_ends(MethodResolver& resolver) {
  if (resolver.choice("share") != "none" || resolver.choice("merge") != "drop") {
    resolver.refuse(fmt::format(
        "store={} keeps the first and the newest rows in full, so it supports no merged or shared "
        "rows: expected merge=drop and share=none, got merge={} and share={}",
        resolver.choice("store"), resolver.choice("merge"), resolver.choice("share")));
  }
}

FullEnds resolved_ends(MethodResolver& resolver) {
  check_ends(resolver);
  return {.first = resolver.integer("full_first"), .last = resolver.integer("full_last")};
}

std::unique_ptr<Store> EndsRule::start(const SessionPlace& place, Dtype recorded) const {
  return std::make_unique<EndsStore>(*this, place, recorded);
}

std::unique_ptr<Store> RowRule::start(const SessionPlace& place, Dtype recorded) const {
  return std::make_unique<RowStore>(*this, place, recorded);
}

}  // namespace kvsim
