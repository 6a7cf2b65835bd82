#include "models/methods/store/row_store.hpp"

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
    format_->round_key(entries.mutable_key(slot));
    format_->round_value(entries.mutable_value(slot));
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

}  // namespace

std::unique_ptr<Store> RowRule::start(const SessionPlace& place, Dtype recorded) const {
  return std::make_unique<RowStore>(*this, place, recorded);
}

}  // namespace kvsim
