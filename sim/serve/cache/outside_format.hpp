#pragma once

// Internal to sim/serve: the format of pages in host memory and NVMe.

#include <cstdint>
#include <span>
#include <string>

#include "models/cost/cache_rows.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/methods/tier_axis.hpp"
#include "models/units/units.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"

namespace kvsim {

/// Bytes of pages in a tier and on the link, and GPU time of the codec, from their bytes on the
/// GPU. Without a codec, pages are unchanged.
class OutsideFormat {
 public:
  OutsideFormat() = default;
  /// Pages are blocks of `in`'s stack in the layers of one GPU. Errors: InputError for a model
  /// whose blocks hold more than rows of tokens (states), or do not hold every token.
  OutsideFormat(const TierRule& codec, std::string name, const CostInput& in,
                std::span<const LayerSpan> layer_classes, const Roofline& roofline);

  [[nodiscard]] bool codes() const { return !name_.empty(); }
  /// Bytes on the link and on NVMe, and bytes reserved in host memory.
  [[nodiscard]] Bytes link(Bytes pages) const { return scaled(pages, link_); }
  [[nodiscard]] Bytes held(Bytes pages) const { return scaled(pages, held_); }
  [[nodiscard]] Seconds encode(Bytes pages) const {
    return Seconds{static_cast<double>(pages.count()) * encode_};
  }
  [[nodiscard]] Seconds decode(Bytes pages) const {
    return Seconds{static_cast<double>(pages.count()) * decode_};
  }
  /// Ratio, rates and their basis, for the notes of a result. `link`: bandwidth of the link.
  [[nodiscard]] std::string note(BytesPerSecond link) const;

 private:
  /// Exact for whole blocks; else rounded up.
  [[nodiscard]] Bytes scaled(Bytes pages, std::int64_t coded) const;

  std::string name_;
  bool fixed_ = true;
  std::int64_t page_ = 1, link_ = 1, held_ = 1;  // bytes of a block in all layers
  double encode_ = 0, decode_ = 0;               // seconds per byte of a page
};

}  // namespace kvsim
