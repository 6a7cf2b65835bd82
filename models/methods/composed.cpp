#include "models/methods/composed.hpp"

#include <algorithm>

#include "models/units/check.hpp"

namespace kvsim {

Compaction ComposedMethod::compaction() const {
  return parts_.bounded ? parts_.merge->compaction() : Compaction::kAppend;
}

std::int32_t ComposedMethod::extra_launches() const {
  // Score update, reduction over the group and argmin of a scoring selector; the merge brings its
  // own.
  return (parts_.select->needs().decode_rows ? 4 : 0) + parts_.merge->launches();
}

std::optional<std::int64_t> ComposedMethod::entries_held(std::int32_t layer,
                                                         std::int64_t /*prompt*/,
                                                         std::int64_t tokens) const {
  return std::min(tokens, parts_.budget->entries(layer));
}

std::optional<std::int64_t> ComposedMethod::entries_attended(std::int32_t layer,
                                                             std::int64_t prompt,
                                                             std::int64_t tokens) const {
  return *entries_held(layer, prompt, tokens - 1) + 1;
}

std::int32_t ComposedMethod::stored_heads(const LayerShape& shape) const {
  return parts_.query_head ? shape.n_heads : shape.n_kv_heads;
}

Dtype ComposedMethod::store_dtype(Dtype recorded) const { return parts_.store->dtype(recorded); }

Bytes ComposedMethod::side_bytes(std::int64_t entries, Dtype recorded) const {
  const Dtype stored = parts_.store->dtype(recorded);
  return (parts_.select->side_bytes_per_entry(stored) +
          parts_.merge->side_bytes_per_entry(stored)) *
         entries;
}

StepTraffic ComposedMethod::decode_traffic(const LayerShape& shape, Dtype recorded, double attended,
                                           bool evicts) const {
  const std::int32_t heads = stored_heads(shape);
  const std::int32_t group = shape.n_heads / heads;
  const double row_bytes =
      2.0 * shape.head_dim * bits_of(parts_.store->dtype(recorded)) / 8.0;  // a key and a value
  StepTraffic one;
  one.attention_read = attended * row_bytes;
  one.append_write = row_bytes;
  parts_.select->add_step(one, attended, group, parts_.store->dtype(recorded));
  parts_.merge->add_step(one, attended, row_bytes, shape.head_dim, evicts);
  if (parts_.rerotate) one.extra_flops += attended * 3.0 * shape.head_dim;
  StepTraffic all;
  for (double StepTraffic::*field :
       {&StepTraffic::attention_read, &StepTraffic::append_write, &StepTraffic::score_row_read,
        &StepTraffic::score_row_write, &StepTraffic::side_read, &StepTraffic::side_write,
        &StepTraffic::move_read, &StepTraffic::move_write, &StepTraffic::extra_flops}) {
    all.*field = one.*field * heads;
  }
  return all;
}

const ComposedMethod& as_composed(const Method& method) {
  const auto* composed = dynamic_cast<const ComposedMethod*>(&method);
  KVSIM_CHECK(composed != nullptr, "method \"{}\" is no composition", method.name());
  return *composed;
}

StepTraffic& StepTraffic::operator+=(const StepTraffic& other) {
  attention_read += other.attention_read;
  append_write += other.append_write;
  score_row_read += other.score_row_read;
  score_row_write += other.score_row_write;
  side_read += other.side_read;
  side_write += other.side_write;
  move_read += other.move_read;
  move_write += other.move_write;
  extra_flops += other.extra_flops;
  return *this;
}

std::optional<Bytes> layer_cache_bytes(const Method& method, std::int32_t layer,
                                       const LayerShape& shape, Dtype recorded, std::int64_t prompt,
                                       std::int64_t tokens) {
  const auto entries = method.entries_held(layer, prompt, tokens);
  if (!entries) return std::nullopt;
  const std::int64_t heads = method.stored_heads(shape);
  return bytes_of(2 * *entries * heads * shape.head_dim, method.store_dtype(recorded)) +
         method.side_bytes(*entries, recorded) * heads;
}

}  // namespace kvsim
