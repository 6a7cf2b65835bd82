#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/math/attention/rope.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

// The tier axis: the format of pages outside the GPU (host memory, disk). It changes the bytes on
// the tier and on the link, and, if it is lossy, the returned rows. It does not change the bytes
// held on the GPU or read by a decode step.

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

/// Work of the GPU when a page leaves or returns: arithmetic and traffic of the GPU's memory. The
/// transfer over the link is not included.
struct TierWork {
  double flops = 0, read = 0, written = 0;
};

/// A prompt whose oldest tokens go through a tier, in the heads of a session.
struct TierRows {
  std::int32_t layer = 0;
  std::int64_t prompt = 0;      // tokens
  std::int64_t tokens = 0;      // the first tokens, which go to the tier and return
  std::int64_t width = 0;       // elements of a token's keys in all these heads
  std::int32_t head_dim = 0;    // width is a multiple of it
  Dtype stored = Dtype::kFp16;  // on the GPU
  const Rope* rope = nullptr;   // not owned; nullptr: unknown
  // [prompt, width]; a codec replaces the first `tokens` rows by the returned rows.
  std::vector<float> keys, values;

  [[nodiscard]] TierPage page() const {
    return {.layer = layer, .tokens = tokens, .keys = width, .values = width, .stored = stored};
  }
};

/// Result of one round trip: bytes, and sums of squares of the rows and of their errors.
struct TierTrip {
  std::int64_t rows = 0;  // number of keys, equal to the number of values
  double page_bytes = 0, link_bytes = 0;
  double key_error = 0, key_square = 0, value_error = 0, value_square = 0;

  TierTrip& operator+=(const TierTrip& other);
};

class TierRule {
 public:
  explicit TierRule(double returned) : returned_{returned} {}
  virtual ~TierRule() = default;

  /// Bytes of a page on the link and on a disk; an upper bound if they depend on the data.
  [[nodiscard]] virtual double link_bytes(const TierPage& page) const = 0;
  /// Bytes that host memory reserves for the page.
  [[nodiscard]] virtual double held_bytes(const TierPage& page) const { return link_bytes(page); }
  /// False if the bytes of a page depend on its contents.
  [[nodiscard]] virtual bool fixed_bytes() const { return true; }
  [[nodiscard]] virtual TierWork encode(const TierPage& page) const = 0;
  [[nodiscard]] virtual TierWork decode(const TierPage& page) const = 0;
  /// True if rows return unchanged.
  [[nodiscard]] virtual bool lossless() const { return false; }
  /// True if the rows of all heads of a layer are coded together.
  [[nodiscard]] virtual bool needs_layer() const { return false; }
  /// Replaces the rows that go to the tier by the returned rows; returns the bytes on the link.
  [[nodiscard]] virtual double pass(TierRows& rows) const = 0;

  /// The share of the prompt (its oldest tokens) that a replay sends through the tier.
  [[nodiscard]] double returned() const { return returned_; }

 private:
  double returned_;
};

/// Returns `x` in the GPU's format, rounded to nearest even; FP8 saturates.
[[nodiscard]] float as_returned(float x, Dtype stored);

/// Sends `rows` through `tier` and returns the bytes and errors.
[[nodiscard]] TierTrip round_trip(const TierRule& tier, TierRows& rows);

}  // namespace kvsim
