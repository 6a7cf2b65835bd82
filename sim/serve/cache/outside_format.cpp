#include "sim/serve/cache/outside_format.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

/// Pages per launch of TensorRT-LLM's codec.
constexpr double kBatch = 256;

Seconds time_of(const TierWork& work, const Roofline& roofline) {
  return roofline.time({.name = "pages of a tier",
                        .family = OpFamily::kElementwise,
                        .flops = FlopCount{kBatch * work.flops},
                        .bytes_read = kBatch * work.read,
                        .bytes_written = kBatch * work.written,
                        .dtype = Dtype::kFp32});
}

}  // namespace

OutsideFormat::OutsideFormat(const TierRule& codec, std::string name, const CostInput& in,
                             std::span<const LayerSpan> layer_classes, const Roofline& roofline)
    : name_{std::move(name)}, fixed_{codec.fixed_bytes()} {
  const std::int64_t block = in.stack->block_tokens;
  double page = 0, link = 0, held = 0;
  Seconds encode, decode;
  for (const LayerSpan& span : layer_classes) {
    CostInput one = in;
    one.batch = 1;
    const CacheRows rows{one, span.layer};
    // Index keys and similar data are stored unchanged.
    const auto other = static_cast<double>(rows.other(block).count());
    if (rows.other(2 * block) != rows.other(block) * 2) {
      throw InputError{
          fmt::format("tier_codec {}: expected a model whose layers all hold rows of tokens, got "
                      "layers with states",
                      name_)};
    }
    const double bits = bits_of(in.method->store_dtype(in.kv_dtype));
    const auto elements = [&](Bytes bytes) {
      return std::llround(static_cast<double>(bytes.count()) * 8 / bits /
                          static_cast<double>(block));
    };
    for (std::int32_t l = span.layer; l < span.layer + span.layers; ++l) {
      const TierPage of{.layer = l,
                        .tokens = block,
                        .keys = elements(rows.keys(block)),
                        .values = elements(rows.values(block)),
                        .stored = in.method->store_dtype(in.kv_dtype)};
      page += of.bytes() + other;
      link += std::ceil(codec.link_bytes(of)) + other;
      held += std::ceil(codec.held_bytes(of)) + other;
      encode += time_of(codec.encode(of), roofline);
      decode += time_of(codec.decode(of), roofline);
    }
  }
  KVSIM_CHECK(page > 0, "a page of {} B", page);
  page_ = std::llround(page);
  link_ = std::llround(link);
  held_ = std::llround(held);
  encode_ = encode.count() / (kBatch * page);
  decode_ = decode.count() / (kBatch * page);
}

Bytes OutsideFormat::scaled(Bytes pages, std::int64_t coded) const {
  if (name_.empty() || coded == page_) return pages;
  const std::int64_t whole = pages.count() / page_;
  const std::int64_t rest = pages.count() % page_;
  const double part =
      static_cast<double>(rest) * static_cast<double>(coded) / static_cast<double>(page_);
  return Bytes{whole * coded + std::llround(std::ceil(part))};
}

std::string OutsideFormat::note(BytesPerSecond link_rate) const {
  const Bytes gib{std::int64_t{1} << 30};
  const Seconds moves = link(gib) / link_rate;
  const auto range = [&](Seconds codec) {
    return fmt::format("{} to {}", std::max(moves, codec), moves + codec);
  };
  return fmt::format(
      "tier_codec {}: a page has {}{:.4g} of its bytes on the link and {:.4g} in host memory; 1 "
      "GiB of pages takes {} to leave and {} to return. The lower times overlap coding with the "
      "copy and are used; the upper ones do not. Coding runs at the data sheet's rates; it was not "
      "measured",
      name_, fixed_ ? "" : "at most ", static_cast<double>(link_) / static_cast<double>(page_),
      static_cast<double>(held_) / static_cast<double>(page_), range(encode(gib)),
      range(decode(gib)));
}

}  // namespace kvsim
