// OSCAR INT2 (OSCAR rotation/compute_kv_rotation.py and
// sglang/QuantKernel/oscar_rotation_clip_int2_kv.py; vLLM vllm/v1/attention/ops/oscar_ops.py): rows
// times a rotation of their layer, in bf16, then two-bit codes with a step and a zero point per
// row.
//
//   R = U H: U the eigenvectors of mean over KV heads of Q^T Q / n for keys, and of V^T diag(w) V /
//   n for values, w_t = k_t Q^T Q k_t^T over its mean; H a Hadamard matrix
//
// The released rotation also permutes the columns of R, which does not affect results, because a
// row has one step. The authors calibrate U on other texts. A replay computes it from the layer's
// prompt (rotation=trace), which is an optimistic bound, or omits it (rotation=hadamard). The signs
// of eigenvectors are not defined; they are those of kvsim's solver.
//
// The first and the newest tokens stay in the recorded format. The server rounds groups of the
// newest tokens; here one token is rounded per step.

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/math/low_int.hpp"
#include "models/math/low_rank/gram.hpp"
#include "models/methods/store/row_store.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

enum class OscarLayout : std::uint8_t { kFp16, kFp32, kVllm };

struct OscarSettings {
  double key_clip = 0.96, value_clip = 0.92;
  bool calibrates = true;
  bool lloyd_max = false;
  OscarLayout layout = OscarLayout::kFp16;
  [[nodiscard]] Dtype scale_dtype() const {
    return layout == OscarLayout::kFp32 ? Dtype::kFp32 : Dtype::kFp16;
  }
};

/// Keys of LayerMemo. Other users of it start at 0.
constexpr std::uint64_t kKeyRotation = (std::uint64_t{1} << 63U) + 1;
constexpr std::uint64_t kValueRotation = (std::uint64_t{1} << 63U) + 2;

/// Returns eigenvectors [d, d] of the layer's prompt, as columns.
std::vector<double> fit(std::span<const HeadVectors> heads, bool of_keys) {
  const auto d = static_cast<std::size_t>(heads.front().head_dim);
  std::vector<double> sum(d * d, 0.0);
  for (const HeadVectors& head : heads) {
    const auto prompt = static_cast<std::size_t>(head.prompt);
    const auto tokens = static_cast<std::size_t>(head.tokens);
    std::vector<double> queries(d * d, 0.0);
    for (std::size_t g = 0; g < static_cast<std::size_t>(head.group); ++g) {
      const auto one = weighted_gram(head.q.subspan(g * tokens * d, prompt * d), d, {});
      for (std::size_t i = 0; i < one.size(); ++i) {
        queries[i] += one[i] / static_cast<double>(prompt * static_cast<std::size_t>(head.group));
      }
    }
    if (of_keys) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += queries[i];
      continue;
    }
    std::vector<double> weights(prompt, 0.0);
    double total = 0;
    for (std::size_t t = 0; t < prompt; ++t) {
      const auto key = head.key(static_cast<std::int64_t>(t));
      for (std::size_t i = 0; i < d; ++i) {
        double product = 0;
        for (std::size_t j = 0; j < d; ++j) {
          product += queries[i * d + j] * static_cast<double>(key[j]);
        }
        weights[t] += static_cast<double>(key[i]) * product;
      }
      total += weights[t];
    }
    // Normalised to a mean of 1, then divided by the number of tokens; the floor is from the
    // released code.
    for (double& w : weights) w /= std::max(total, 1e-12);
    const auto values = weighted_gram(head.values.first(prompt * d), d, weights);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  // The mean over KV heads has the same eigenvectors.
  return symmetric_eigenvectors(sum, d);
}

class OscarFormat final : public RowFormat {
 public:
  explicit OscarFormat(const OscarSettings& settings) : set_{settings} {}

  void calibrate(const EntryTable& /*entries*/, PromptScores& scores,
                 std::size_t /*head*/) override {
    if (!set_.calibrates) return;
    if (scores.knows_layer()) {
      const LayerVectors& layer = scores.layer();
      key_basis_ = layer.memo->get(kKeyRotation, [&] { return fit(layer.heads, true); });
      value_basis_ = layer.memo->get(kValueRotation, [&] { return fit(layer.heads, false); });
    } else {
      key_basis_ = fit(scores.heads(), true);
      value_basis_ = fit(scores.heads(), false);
    }
  }
  void round_key(std::span<float> key) const override { round(key, key_basis_, set_.key_clip); }
  void round_value(std::span<float> value) const override {
    round(value, value_basis_, set_.value_clip);
  }

 private:
  static void rotate(std::span<float> row) {
    const float norm = std::sqrt(static_cast<float>(row.size()));
    hadamard(row);
    for (float& x : row) x /= norm;
  }
  /// Multiplies the row by the basis or by its transpose.
  static void turn(std::span<float> row, std::span<const double> basis, bool back) {
    if (basis.empty()) return;
    const std::size_t d = row.size();
    std::vector<double> out(d, 0.0);
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        out[back ? i : j] += static_cast<double>(row[back ? j : i]) * basis[i * d + j];
      }
    }
    for (std::size_t j = 0; j < d; ++j) row[j] = static_cast<float>(out[j]);
  }
  void round(std::span<float> row, std::span<const double> basis, double clip) const {
    turn(row, basis, /*back=*/false);
    rotate(row);
    for (float& x : row) x = as_stored(x, Dtype::kBf16);
    const OscarRow scale = oscar_row(row, clip, set_.scale_dtype(), set_.lloyd_max);
    for (float& x : row) x = oscar_value(oscar_code(x, scale), scale);
    rotate(row);
    turn(row, basis, /*back=*/true);
  }

  OscarSettings set_;
  std::vector<double> key_basis_, value_basis_;  // empty: none
};

class OscarRule final : public EndsRule {
 public:
  OscarRule(const OscarSettings& settings, FullEnds ends) : EndsRule{ends}, set_{settings} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<OscarFormat>(set_);
  }
  bool needs_layer() const override { return set_.calibrates; }
  Dtype dtype(Dtype /*recorded*/) const override { return Dtype::kInt2; }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    const std::int64_t codes = head_dim / 4;
    if (set_.layout == OscarLayout::kFp32) return Bytes{codes + 8};
    return Bytes{set_.layout == OscarLayout::kFp16 ? codes + 4 : (codes + 4 + 15) / 16 * 16};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    RowRule::add_step(traffic, events, shape);
    // A key, a value, each query and each output are rotated. One entry leaves the newest tokens:
    // it is read, rounded and written. The step's token is written in full precision.
    traffic.extra_flops += rotation_flops(shape.head_dim) * 2 * (1 + shape.group);
    traffic.extra_flops += 2.0 * shape.head_dim * kRoundFlops;
    const double full = 2.0 * shape.head_dim * bits_of(shape.recorded) / 8.0;
    const auto packed = static_cast<double>(entry_bytes(shape.head_dim, shape.recorded).count());
    traffic.append_write = full;
    traffic.move_read += full;
    traffic.move_write += packed;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const double rows = 2.0 * static_cast<double>(prompt) * shape.n_kv_heads;
    PrefillExtra extra;
    extra.flops = rows * (rotation_flops(shape.head_dim) + shape.head_dim * kRoundFlops);
    extra.launches = 4;  // rotations and codes; the cache write includes their bytes
    return extra;
  }

 private:
  // Magnitude, clamp (2), minimum, maximum, division, sum, rounding and clamp (2); the sort of a
  // row is not counted.
  static constexpr double kRoundFlops = 10;
  OscarSettings set_;
};

std::shared_ptr<const StoreRule> make_oscar(MethodResolver& resolver) {
  check_rotation(resolver);
  OscarSettings set;
  set.key_clip = resolver.number("key_clip");
  set.value_clip = resolver.number("value_clip");
  set.calibrates = resolver.word("rotation") == "trace";
  set.lloyd_max = resolver.flag("lloyd_max");
  const std::string& layout = resolver.word("layout");
  if (layout == "fp32") set.layout = OscarLayout::kFp32;
  if (layout == "vllm") set.layout = OscarLayout::kVllm;
  return std::make_shared<OscarRule>(set, resolved_ends(resolver));
}

}  // namespace

AxisChoice store_oscar() {
  const std::string script = "OSCAR rotation/eval_oscar_gpqa.sh";
  std::vector<ParamInfo> params{
      number_param("key_clip", "", 0.96, 0, 1, "a number in [0, 1], 0 for none",
                   "keys are clamped to this quantile of the magnitudes in a row", script),
      number_param("value_clip", "", 0.92, 0, 1, "a number in [0, 1], 0 for none",
                   "values are clamped to this quantile of the magnitudes in a row", script),
      word_param(
          "rotation", {"trace", "hadamard"},
          "eigenvectors of the prompt in this layer and a Hadamard matrix, or only the latter",
          "OSCAR calibrates on other texts; hadamard is QuaRot with two bits"),
      word_param("layout", {"fp16", "fp32", "vllm"},
                 "step and zero point of a row: fp16, fp32, or fp16 with rows padded to 16 bytes",
                 "fp32: OSCAR's server; vllm: vLLM oscar_ops.py"),
      flag_param("lloyd_max", false, "levels for normally distributed rows instead of equal steps",
                 "OSCAR's server: LLOYD_MAX")};
  for (ParamInfo& param : ends_params(64, 256, script)) params.push_back(std::move(param));
  return {.axis = "store",
          .name = "oscar",
          .params = with_kept_layers(std::move(params)),
          .make = &make_oscar};
}

}  // namespace kvsim
