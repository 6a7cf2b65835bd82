// Shared by the codecs of the tier axis.

#include "models/methods/tier/tier.hpp"

#include <fmt/format.h>

#include "models/math/low_int.hpp"
#include "models/math/quantise.hpp"
#include "models/methods/tier_axis.hpp"
#include "models/units/check.hpp"

namespace kvsim {

float as_returned(float x, Dtype stored) {
  if (stored == Dtype::kFp8E4m3) return round_to_fp8(x, Fp8::kE4m3);
  if (stored == Dtype::kFp8E5m2) return round_to_fp8(x, Fp8::kE5m2);
  return as_stored(x, stored);
}

TierTrip& TierTrip::operator+=(const TierTrip& other) {
  rows += other.rows;
  page_bytes += other.page_bytes;
  link_bytes += other.link_bytes;
  key_error += other.key_error;
  key_square += other.key_square;
  value_error += other.value_error;
  value_square += other.value_square;
  return *this;
}

TierTrip round_trip(const TierRule& tier, TierRows& rows) {
  const auto size = static_cast<std::size_t>(rows.prompt * rows.width);
  KVSIM_CHECK(rows.keys.size() == size && rows.values.size() == size && rows.tokens <= rows.prompt,
              "{} keys and {} values of {} tokens with {} elements, of which {} return",
              rows.keys.size(), rows.values.size(), rows.prompt, rows.width, rows.tokens);
  const std::vector<float> keys = rows.keys;
  const std::vector<float> values = rows.values;
  TierTrip trip{.rows = rows.tokens * (rows.width / rows.head_dim),
                .page_bytes = rows.page().bytes()};
  if (rows.tokens == 0) return trip;
  trip.link_bytes = tier.pass(rows);
  const auto sent = static_cast<std::size_t>(rows.tokens * rows.width);
  const auto add = [sent](std::span<const float> before, std::span<const float> after,
                          double& error, double& square) {
    for (std::size_t i = 0; i < sent; ++i) {
      const double x = static_cast<double>(before[i]);
      const double off = static_cast<double>(after[i]) - x;
      error += off * off;
      square += x * x;
    }
  };
  add(keys, rows.keys, trip.key_error, trip.key_square);
  add(values, rows.values, trip.value_error, trip.value_square);
  return trip;
}

ParamInfo returned_param() {
  return number_param("returned", "", 1, 0, 1, "[0, 1]",
                      "share of the prompt, its oldest tokens, that a replay sends to the tier and "
                      "back",
                      "1: a prefix that was evicted whole; TensorRT-LLM's accuracy runs: 0.3, 0.6");
}

double resolve_returned(MethodResolver& resolver) {
  const std::string& tier = resolver.choice("tier");
  if (resolver.choice("select") != "all" || resolver.choice("share") != "none" ||
      resolver.word("granularity") != "kv_head") {
    resolver.refuse(
        fmt::format("tier={} encodes pages that hold every token of their layer: expected "
                    "select=all, share=none and granularity=kv_head",
                    tier));
  }
  const std::string& store = resolver.choice("store");
  const bool is_fp8 =
      store == "fp8-e4m3" && resolver.word("scale") == "tensor" && resolver.word("source") == "one";
  if (!is_fp8 && store != "recorded" && store != "fp16" && store != "bf16") {
    resolver.refuse(
        fmt::format("tier={}: expected pages of 16-bit rows (store=recorded, fp16 or bf16) or of "
                    "fp8-e4m3 with scale=tensor and source=one, got store={}",
                    tier, store));
  }
  return resolver.number("returned");
}

}  // namespace kvsim
