// GEAR (Kang et al. 2024): a quantised backbone, separate outliers, and a low-rank part of the
// quantisation error. New tokens are buffered in full precision until a block is complete.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/math/half.hpp"
#include "models/math/low_rank/low_rank.hpp"
#include "models/math/quantise.hpp"
#include "models/methods/store/store.hpp"

namespace kvsim {
namespace {

struct GearShape {
  std::int32_t bits = 2;
  std::int32_t levels = 3;
  bool per_vector = false;         // KCVT: one step per channel of keys, per token of values
  bool outliers_of_width = false;  // the released code's count of key outliers
  std::int32_t group = 64;
  std::int32_t block = 64;  // tokens compressed together in decode
  double outliers = 0.02;
  std::int32_t prompt_rank = 4, block_rank = 2;
  std::int32_t rounds = 3;

  /// Number of outliers at each end of a vector of `length` values.
  [[nodiscard]] std::int32_t each_end(std::int64_t length) const {
    return static_cast<std::int32_t>(outliers * static_cast<double>(length) / 2.0);
  }
  [[nodiscard]] std::int32_t key_outliers(std::int64_t tokens, std::int32_t d) const {
    return std::min(each_end(outliers_of_width ? d : tokens),
                    static_cast<std::int32_t>(tokens / 2));
  }
  [[nodiscard]] std::int32_t key_group(std::int64_t tokens) const {
    return per_vector ? static_cast<std::int32_t>(tokens) : group;
  }
  [[nodiscard]] std::int32_t value_group(std::int32_t d) const {
    return per_vector ? d : std::min(group, d);
  }
  /// Bytes of a block of `tokens` keys and values.
  [[nodiscard]] std::int64_t block_bytes(std::int64_t tokens, std::int32_t rank, std::int32_t d,
                                         std::int64_t element_bytes) const {
    if (tokens == 0) return 0;
    const auto groups = [](std::int64_t n, std::int64_t g) { return (n + g - 1) / g; };
    const std::int64_t codes = 2 * ((tokens * d * bits + 7) / 8);
    const std::int64_t scales =
        4 * (groups(tokens, key_group(tokens)) * d + groups(d, value_group(d)) * tokens);
    const std::int64_t apart = 2LL * key_outliers(tokens, d) * d + 2LL * each_end(d) * tokens;
    const std::int64_t used = std::min<std::int64_t>({rank, tokens, d});
    return codes + scales + apart * (element_bytes + 2) + 2 * used * (tokens + d) * element_bytes;
  }
};

/// One tensor of a block, [n, d]: writes back the dequantised values.
class GearTensor {
 public:
  GearTensor(const GearShape& shape, Dtype recorded) : shape_{shape}, recorded_{recorded} {}

  void compress(std::span<float> rows, std::int32_t n, std::int32_t d, bool keys,
                std::int32_t rank) {
    original_.assign(rows.begin(), rows.end());
    apart_.assign(rows.size(), 0);
    const auto width = static_cast<std::size_t>(d);
    const auto tokens = static_cast<std::size_t>(n);
    if (keys) {
      for (std::size_t j = 0; j < width; ++j) {
        set_apart(rows, j, width, tokens, shape_.key_outliers(n, d));
      }
      round_asymmetric_columns(rows, d, shape_.key_group(n), shape_.levels);
    } else {
      for (std::size_t i = 0; i < tokens; ++i) {
        set_apart(rows, i * width, 1, width, shape_.each_end(d));
        round_asymmetric_row(rows.subspan(i * width, width), shape_.value_group(d), shape_.levels);
      }
    }
    lost_.resize(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (apart_[i] != 0) rows[i] = original_[i];
      lost_[i] = static_cast<double>(original_[i]) - static_cast<double>(rows[i]);
    }
    LowRank part = power_iteration(lost_, n, d, rank, shape_.rounds);
    const auto r = static_cast<std::size_t>(part.rank);
    for (double& x : part.a) x = kept(x);
    for (double& x : part.b) x = kept(x);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (apart_[i] != 0) continue;  // its sparse entry also compensates for the low-rank part
      double sum = 0;
      for (std::size_t c = 0; c < r; ++c) {
        sum += part.a[i / width * r + c] * part.b[i % width * r + c];
      }
      rows[i] += static_cast<float>(sum);
    }
  }

 private:
  /// Replaces the `each_end` smallest and largest values of a vector by its mean, and marks them.
  void set_apart(std::span<float> rows, std::size_t first, std::size_t stride, std::size_t length,
                 std::int32_t each_end) {
    if (each_end == 0) return;
    double mean = 0;
    order_.resize(length);
    for (std::size_t i = 0; i < length; ++i) {
      order_[i] = first + i * stride;
      mean += static_cast<double>(rows[order_[i]]);
    }
    mean /= static_cast<double>(length);
    std::sort(order_.begin(), order_.end(), [&rows](std::size_t a, std::size_t b) {
      return rows[a] != rows[b] ? rows[a] < rows[b] : a < b;
    });
    for (std::size_t i = 0; i < static_cast<std::size_t>(each_end); ++i) {
      apart_[order_[i]] = 1;
      apart_[order_[length - 1 - i]] = 1;
    }
    for (const std::size_t at : order_) {
      if (apart_[at] != 0) rows[at] = static_cast<float>(mean);
    }
  }
  /// Returns an element of a factor as stored in the cache.
  [[nodiscard]] double kept(double x) const {
    const auto narrow = static_cast<float>(x);
    if (recorded_ == Dtype::kFp16) return static_cast<double>(fp16_to_float(float_to_fp16(narrow)));
    if (recorded_ == Dtype::kBf16) return static_cast<double>(bf16_to_float(float_to_bf16(narrow)));
    return static_cast<double>(narrow);
  }

  const GearShape& shape_;
  Dtype recorded_;
  std::vector<float> original_;
  std::vector<char> apart_;
  std::vector<double> lost_;
  std::vector<std::size_t> order_;
};

class GearStore final : public Store {
 public:
  GearStore(const GearShape& shape, const SessionPlace& place, Dtype recorded)
      : shape_{shape},
        head_dim_{place.head_dim},
        element_bytes_{bits_of(recorded) / 8},
        block_of_(static_cast<std::size_t>(place.tokens), -1),
        tensor_{shape_, recorded} {}

  void prompt_written(EntryTable& entries, PromptScores& /*scores*/,
                      std::size_t /*head*/) override {
    waiting_.assign(entries.ids().begin(), entries.ids().end());
    std::sort(waiting_.begin(), waiting_.end());
    const auto block = static_cast<std::size_t>(shape_.block);
    compress(entries, waiting_.size() / block * block, shape_.prompt_rank);
  }
  void appended(EntryTable& entries, std::int32_t slot) override {
    waiting_.push_back(entries.id(slot));
  }
  void stepped(EntryTable& entries) override {
    requantised_.clear();
    const auto block = static_cast<std::size_t>(shape_.block);
    if (waiting_.size() >= block) compress(entries, block, shape_.block_rank);
  }
  void rewritten(EntryTable& /*entries*/, std::int32_t /*slot*/) override {}
  void leaving(const EntryTable& /*entries*/, std::int32_t id) override {
    const std::int32_t block = block_of_[static_cast<std::size_t>(id)];
    if (block < 0) {
      waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), id), waiting_.end());
      return;
    }
    Block& of = blocks_[static_cast<std::size_t>(block)];
    if (--of.alive == 0) bytes_ -= of.bytes;
  }
  std::span<const std::int32_t> requantised() const override { return requantised_; }
  Bytes kv_bytes(const EntryTable& /*entries*/) const override {
    return Bytes{bytes_ +
                 static_cast<std::int64_t>(waiting_.size()) * 2 * head_dim_ * element_bytes_};
  }

 private:
  struct Block {
    std::int64_t bytes = 0;
    std::int64_t alive = 0;
  };
  /// Compresses the first `tokens` buffered tokens into a block.
  void compress(EntryTable& entries, std::size_t tokens, std::int32_t rank) {
    if (tokens == 0) return;
    const auto d = static_cast<std::size_t>(head_dim_);
    rows_.resize(tokens * d);
    for (const bool keys : {true, false}) {
      for (std::size_t i = 0; i < tokens; ++i) {
        const std::int32_t slot = entries.slot_of(waiting_[i]);
        std::copy_n((keys ? entries.key(slot) : entries.value(slot)).data(), d,
                    rows_.data() + i * d);
      }
      tensor_.compress(rows_, static_cast<std::int32_t>(tokens), head_dim_, keys, rank);
      for (std::size_t i = 0; i < tokens; ++i) {
        const std::int32_t slot = entries.slot_of(waiting_[i]);
        std::copy_n(rows_.data() + i * d, d,
                    (keys ? entries.mutable_key(slot) : entries.mutable_value(slot)).data());
      }
    }
    for (std::size_t i = 0; i < tokens; ++i) {
      block_of_[static_cast<std::size_t>(waiting_[i])] = static_cast<std::int32_t>(blocks_.size());
      requantised_.push_back(waiting_[i]);
    }
    const auto n = static_cast<std::int64_t>(tokens);
    blocks_.push_back({shape_.block_bytes(n, rank, head_dim_, element_bytes_), n});
    bytes_ += blocks_.back().bytes;
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(tokens));
  }

  GearShape shape_;
  std::int32_t head_dim_;
  std::int64_t element_bytes_;
  std::vector<std::int32_t> waiting_;   // ids, ascending
  std::vector<std::int32_t> block_of_;  // by id
  std::vector<Block> blocks_;
  std::int64_t bytes_ = 0;
  std::vector<std::int32_t> requantised_;
  std::vector<float> rows_;
  GearTensor tensor_;
};

class GearRule final : public StoreRule {
 public:
  GearRule(const GearShape& shape, bool copy) : shape_{shape}, copy_{copy} {}
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override {
    return std::make_unique<GearStore>(shape_, place, recorded);
  }
  Dtype dtype(Dtype recorded) const override { return recorded; }
  bool rounds() const override { return true; }
  bool keeps_values() const override { return false; }
  bool groups_tokens() const override { return true; }
  Bytes kv_bytes(std::int64_t prompt_entries, std::int64_t entries, std::int32_t head_dim,
                 Dtype recorded) const override {
    const std::int64_t element_bytes = bits_of(recorded) / 8;
    const std::int64_t first = prompt_entries - prompt_entries % shape_.block;
    const std::int64_t blocks = (entries - first) / shape_.block;
    const std::int64_t waiting = (entries - first) % shape_.block;
    return Bytes{shape_.block_bytes(first, shape_.prompt_rank, head_dim, element_bytes) +
                 blocks *
                     shape_.block_bytes(shape_.block, shape_.block_rank, head_dim, element_bytes) +
                 waiting * 2 * head_dim * element_bytes};
  }
  /// Bits for one block of a long prompt, in which the factors' fixed part is negligible.
  double bits_per_element(std::int32_t head_dim, Dtype recorded) const override {
    constexpr std::int64_t kLong = 1 << 20;
    const std::int64_t bytes =
        shape_.block_bytes(kLong, shape_.prompt_rank, head_dim, bits_of(recorded) / 8);
    return 4.0 * static_cast<double>(bytes) / (static_cast<double>(kLong) * head_dim);
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    add_dequant(traffic, events, shape, copy_);
    const double d = shape.head_dim;
    const double rank = shape_.prompt_rank;
    traffic.extra_flops += 2.0 * 2.0 * rank * (events.attended + d);
    // One row per step is compressed, averaged over blocks; power iteration makes two passes per
    // round.
    traffic.extra_flops += 2.0 * compress_flops(1.0, d, shape_.block_rank);
    traffic.move_read += 2.0 * d * bits_of(shape.recorded) / 8.0;
    traffic.move_write +=
        static_cast<double>(shape_.block_bytes(shape_.block, shape_.block_rank, shape.head_dim,
                                               bits_of(shape.recorded) / 8)) /
        shape_.block;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const auto tokens = static_cast<double>(prompt);
    PrefillExtra extra;
    extra.flops =
        2.0 * shape.n_kv_heads * compress_flops(tokens, shape.head_dim, shape_.prompt_rank);
    // Bytes that power iteration reads again; the first read and the packed bytes are included in
    // the cache write.
    extra.read = 2.0 * tokens * shape.n_kv_heads * shape.head_dim * bits_of(recorded) / 8.0 * 2.0 *
                 shape_.rounds;
    extra.transient = bytes_of(2 * prompt * shape.n_kv_heads * shape.head_dim, recorded);
    extra.launches = 4 + 4 * shape_.rounds;
    return extra;
  }

 private:
  /// Quantisation and power iteration of n rows of one tensor (GEAR section 4: 6 N d r).
  [[nodiscard]] double compress_flops(double n, double d, double rank) const {
    return 4.0 * n * d + 2.0 * 2.0 * n * d * rank * shape_.rounds;
  }
  GearShape shape_;
  bool copy_;
};

std::shared_ptr<const StoreRule> resolve_gear(MethodResolver& resolver) {
  GearShape shape;
  shape.bits = resolved_code_bits(resolver);
  shape.levels =
      resolver.word("levels") == "code" ? shape.bits * shape.bits - 1 : (1 << shape.bits) - 1;
  shape.per_vector = resolver.word("backbone") == "kcvt";
  const std::string& variant = resolver.word("variant");
  const bool has_outliers = variant != "gear-l";
  shape.outliers_of_width = has_outliers && resolver.word("outliers") == "code";
  // Whole vectors are not divided into groups.
  if (!shape.per_vector) shape.group = static_cast<std::int32_t>(resolver.integer("quant_group"));
  shape.block = static_cast<std::int32_t>(resolver.integer("buffer"));
  if (shape.per_vector && !resolver.given("buffer")) {
    shape.block = 20;
    resolver.resolve("buffer", std::int64_t{20});
  }
  shape.outliers = has_outliers ? resolver.number("outlier_share") : 0.0;
  if (variant == "outlier-kivi") {
    shape.prompt_rank = shape.block_rank = 0;
  } else {
    shape.prompt_rank = static_cast<std::int32_t>(resolver.integer("prompt_rank"));
    shape.block_rank = static_cast<std::int32_t>(resolver.integer("block_rank"));
    shape.rounds = static_cast<std::int32_t>(resolver.integer("rounds"));
  }
  if (!shape.per_vector && shape.block % shape.group != 0) {
    resolver.refuse(
        fmt::format("buffer: expected a multiple of quant_group {} (keys are grouped along the "
                    "tokens of a block), got {}",
                    shape.group, shape.block));
  }
  if (resolver.choice("merge") != "drop") {
    resolver.refuse(fmt::format(
        "store=gear compresses blocks of tokens together, so merge={} cannot write a merged row",
        resolver.choice("merge")));
  }
  return std::make_shared<GearRule>(shape, resolver.word("dequant") == "copy");
}

}  // namespace

AxisChoice store_gear() {
  const std::string paper = "GEAR section 5: 2 bits, g 64, 2 % outliers, rank 4 and 2";
  return {
      .axis = "store",
      .name = "gear",
      .params =
          {code_bits_param(2, paper),
           integer_param("quant_group", "g", 64, 1, 65536,
                         ">= 1; at most the head dimension is used for values",
                         "tokens of a key group, channels of a value group", paper),
           word_param("backbone", {"kivi", "kcvt"},
                      "one step per group, or per channel of keys and per token of values",
                      "GEAR section 3"),
           integer_param(
               "buffer", "n_b", 64, 1, 1048576, ">= 1, a multiple of the group",
               "new tokens kept in full precision and compressed as a block (20 for kcvt)", paper),
           word_param("variant", {"gear", "gear-l", "outlier-kivi"},
                      "all parts, no outliers, or no low-rank part", "GEAR section 5"),
           number_param("outlier_share", "s", 0.02, 0, 0.5, "[0, 0.5]",
                        "share of values stored separately, half of them the smallest", paper),
           word_param("outliers", {"fraction", "code"},
                      "key outliers per channel: this share of its tokens, or of the head "
                      "dimension for any number of tokens",
                      "the released code counts by head dimension"),
           word_param("levels", {"pow2", "code"}, "2^bits - 1 steps, or bits^2 - 1",
                      "the released code differs at 8 bits"),
           integer_param("prompt_rank", "r", 4, 0, 4096, ">= 0", "rank of the prompt's block",
                         paper),
           integer_param("block_rank", "", 2, 0, 4096, ">= 0", "rank of a decode block", paper),
           integer_param("rounds", "", 3, 1, 100, ">= 1", "rounds of power iteration", paper),
           dequant_param()},
      .make = &resolve_gear};
}

}  // namespace kvsim
