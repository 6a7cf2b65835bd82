// Floating-point stores: rows as they come, or rounded to the format they are kept in.

#include "models/math/half.hpp"
#include "models/methods/axes.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// The cache's own format. Recorded rows pass as they are; merged ones are not rounded.
class RecordedStore final : public StoreRule {
 public:
  Dtype dtype(Dtype recorded) const override { return recorded; }
  void write(std::span<float> /*row*/) const override {}
  bool rounds() const override { return false; }
};

class FloatStore final : public StoreRule {
 public:
  explicit FloatStore(Dtype dtype) : dtype_{dtype} {}
  Dtype dtype(Dtype /*recorded*/) const override { return dtype_; }
  void write(std::span<float> row) const override {
    for (float& x : row) {
      x = dtype_ == Dtype::kFp16 ? fp16_to_float(float_to_fp16(x))
                                 : bf16_to_float(float_to_bf16(x));
    }
  }
  bool rounds() const override { return dtype_ != Dtype::kFp32; }

 private:
  Dtype dtype_;
};

}  // namespace

std::shared_ptr<const StoreRule> make_store(std::string_view name) {
  if (name == "recorded") return std::make_shared<RecordedStore>();
  const auto dtype = parse_dtype(name);
  KVSIM_CHECK(dtype == Dtype::kFp32 || dtype == Dtype::kFp16 || dtype == Dtype::kBf16,
              "store \"{}\" is in the catalogue but not here", name);
  return std::make_shared<FloatStore>(*dtype);
}

}  // namespace kvsim
