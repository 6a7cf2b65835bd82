// Floating-point stores: rows unchanged, or rounded to the stored format.

#include "models/math/half.hpp"
#include "models/methods/store/store.hpp"

namespace kvsim {
namespace {

void round_to(std::span<float> row, Dtype dtype) {
  for (float& x : row) {
    x = dtype == Dtype::kFp16 ? fp16_to_float(float_to_fp16(x)) : bf16_to_float(float_to_bf16(x));
  }
}

class FloatStore final : public Store {
 public:
  explicit FloatStore(Dtype dtype, std::int32_t head_dim) : dtype_{dtype}, head_dim_{head_dim} {}
  void prompt_written(EntryTable& entries, PromptScores& /*scores*/,
                      std::size_t /*head*/) override {
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) rewritten(entries, slot);
  }
  void appended(EntryTable& entries, std::int32_t slot) override { rewritten(entries, slot); }
  void rewritten(EntryTable& entries, std::int32_t slot) override {
    round(entries.mutable_key(slot));
    round(entries.mutable_value(slot));
  }
  Bytes kv_bytes(const EntryTable& entries) const override {
    return bytes_of(2LL * entries.size() * head_dim_, dtype_);
  }

 private:
  void round(std::span<float> row) const { round_to(row, dtype_); }
  Dtype dtype_;
  std::int32_t head_dim_;
};

/// The format `stored`, or the recorded format if it is empty. In the latter, recorded rows are
/// unchanged and merged rows are not rounded.
class FloatRule final : public StoreRule {
 public:
  explicit FloatRule(std::optional<Dtype> stored) : stored_{stored} {}
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override {
    return std::make_unique<FloatStore>(dtype(recorded), place.head_dim);
  }
  Dtype dtype(Dtype recorded) const override { return stored_.value_or(recorded); }
  bool plain() const override { return true; }
  bool rounds() const override { return stored_ && *stored_ != Dtype::kFp32; }
  Bytes kv_bytes(std::int64_t /*prompt_entries*/, std::int64_t entries, std::int32_t head_dim,
                 Dtype recorded) const override {
    return bytes_of(2 * entries * head_dim, dtype(recorded));
  }
  double bits_per_element(std::int32_t /*head_dim*/, Dtype recorded) const override {
    return bits_of(dtype(recorded));
  }
  void round_row(std::span<float> row, Dtype recorded) const override {
    if (rounds()) round_to(row, dtype(recorded));
  }

 private:
  std::optional<Dtype> stored_;
};

template <int kDtype>  // -1: the recorded format
std::shared_ptr<const StoreRule> resolve_float_store(MethodResolver& /*resolving*/) {
  if constexpr (kDtype < 0) {
    return std::make_shared<FloatRule>(std::nullopt);
  } else {
    return std::make_shared<FloatRule>(static_cast<Dtype>(kDtype));
  }
}

template <int kDtype>
AxisChoice choice(std::string_view name) {
  return {.axis = "store", .name = name, .params = {}, .make = &resolve_float_store<kDtype>};
}

}  // namespace

const StoreRule& recorded_rule() {
  static const FloatRule rule{std::nullopt};
  return rule;
}

AxisChoice store_recorded() { return choice<-1>("recorded"); }
AxisChoice store_fp32() { return choice<static_cast<int>(Dtype::kFp32)>("fp32"); }
AxisChoice store_fp16() { return choice<static_cast<int>(Dtype::kFp16)>("fp16"); }
AxisChoice store_bf16() { return choice<static_cast<int>(Dtype::kBf16)>("bf16"); }

}  // namespace kvsim
