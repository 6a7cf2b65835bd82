#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/math/attention/rope.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

// The tier axis: the format of pages outside the GPU (host memory, disk). It changes the bytes of
// the tier and of the link, and, where it is lossy, the rows that come back. What the GPU holds and
// a decode step reads do not change.

/// A page of one layer that leaves the GPU.
struct TierPage {
  std::int32_t layer = 0;
  std::int64_t tokens = 0;
  std::int64_t keys = 0, values = 0;  // elements of a token, in all stored heads
  Dtype stored = Dtype::kFp16;        // on the GPU

  [[nodiscard]] double elements() const {
    return static_cast<double>(tokens) * static_cast<double>(keys + values);
  }
  [[nodiscard]] double bytes() const { return elements() * bits_of(stored) / 8.0; }
};

/// Work of the GPU when a page leaves or returns: arithmetic, and traffic of the GPU's memory. The
/// link carries the page in addition.
struct TierWork {
  double flops = 0, read = 0, written = 0;
};

/// A prompt whose oldest tokens go through a tier, in the heads that a session has.
struct TierRows {
  std::int32_t layer = 0;
  std::int64_t prompt = 0;      // tokens
  std::int64_t tokens = 0;      // of these, the first that go to the tier and return
  std::int64_t width = 0;       // elements of a token's keys in all of these heads
  std::int32_t head_dim = 0;    // width is a multiple of it
  Dtype stored = Dtype::kFp16;  // on the GPU
  const Rope* rope = nullptr;   // not owned; nullptr: unknown
  // [prompt, width]; a codec replaces the first `tokens` rows by those that return.
  std::vector<float> keys, values;

  [[nodiscard]] TierPage page() const {
    return {.layer = layer, .tokens = tokens, .keys = width, .values = width, .stored = stored};
  }
};

/// What one round trip did to rows: bytes, and sums of squares.
struct TierTrip {
  std::int64_t rows = 0;  // keys, and as many values
  double page_bytes = 0, link_bytes = 0;
  double key_error = 0, key_square = 0, value_error = 0, value_square = 0;

  TierTrip& operator+=(const TierTrip& other);
};

class TierRule {
 public:
  explicit TierRule(double returned) : returned_{returned} {}
  virtual ~TierRule() = default;

  /// Bytes of a page on the link and on a disk. Where they depend on the data: the most.
  [[nodiscard]] virtual double link_bytes(const TierPage& page) const = 0;
  /// Bytes that host memory reserves for the page.
  [[nodiscard]] virtual double held_bytes(const TierPage& page) const { return link_bytes(page); }
  /// False: the bytes of a page depend on its contents.
  [[nodiscard]] virtual bool fixed_bytes() const { return true; }
  [[nodiscard]] virtual TierWork encode(const TierPage& page) const = 0;
  [[nodiscard]] virtual TierWork decode(const TierPage& page) const = 0;
  /// Rows return as they left.
  [[nodiscard]] virtual bool lossless() const { return false; }
  /// The rows of all heads of a layer are coded together.
  [[nodiscard]] virtual bool needs_layer() const { return false; }
  /// Replaces the rows that go to the tier by those that return; the result is the bytes on the
  /// link.
  [[nodiscard]] virtual double pass(TierRows& rows) const = 0;

  /// The share of the prompt, its oldest tokens, that a replay sends through the tier.
  [[nodiscard]] double returned() const { return returned_; }

 private:
  double returned_;
};

/// A value as the GPU's format holds it, rounded to nearest even; FP8 saturates.
[[nodiscard]] float as_returned(float x, Dtype stored);

/// Sends `rows` through `tier` and reports what became of them.
[[nodiscard]] TierTrip round_trip(const TierRule& tier, TierRows& rows);

}  // namespace kvsim
