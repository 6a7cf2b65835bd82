#include "models/methods/composed.hpp"

#include <algorithm>
#include <cmath>

#include "models/units/check.hpp"

namespace kvsim {

const StoreRule& Composition::store_of(std::int32_t layer) const {
  return keeps(layer) ? recorded_rule() : *store;
}

ComposedMethod::ComposedMethod(Composition parts) : parts_{std::move(parts)} {
  parts_.learns_steps = parts_.select->needs().decode_rows || parts_.merge->needs().decode_rows;
  std::int32_t paired = 0;
  for (std::int32_t layer = 0; layer < parts_.n_layers; ++layer) {
    paired += starts_pair(layer, parts_.n_layers) ? 2 : 0;
  }
  if (paired > 0) paired_layers_ = static_cast<double>(paired) / parts_.n_layers;
  plain_ = !parts_.share && !parts_.read && parts_.store->plain();
  masks_ = parts_.store->masks();
  has_law_ = parts_.merge->keeps_size_law();
  refreshes_ = parts_.merge->refresh_period() > 0;
}

const Params& ComposedMethod::params() const {
  std::call_once(params_once_, [&] {
    if (parts_.declared) params_ = *parts_.declared;
    for (const auto& [name, value] : parts_.solved) params_[name] = value;
  });
  return params_;
}

bool ComposedMethod::selects_together() const {
  return parts_.select->shared_by_layer() || (parts_.share && parts_.share->whole_rows()) ||
         (parts_.read && parts_.read->needs_layer()) || (parts_.tier && parts_.tier->needs_layer());
}

DecisionScope ComposedMethod::decision_scope() const {
  return selects_together() || parts_.merge->needs_layer() || parts_.select->needs_layer()
             ? DecisionScope::kLayer
             : DecisionScope::kHead;
}

bool ComposedMethod::selects_apart() const {
  return (parts_.merge->needs_layer() || parts_.select->needs_layer()) && !selects_together();
}

bool ComposedMethod::starts_pair(std::int32_t layer, std::int32_t n_layers) const {
  return parts_.share && parts_.share->starts_pair(layer, n_layers);
}

bool ComposedMethod::has_retained_mass() const {
  return !merges() && !parts_.share && !parts_.rerotate && !parts_.rerotate_prompt &&
         (!parts_.read || parts_.read->keeps_rows()) && parts_.store->keeps_values() &&
         (!parts_.tier || parts_.tier->lossless() || parts_.tier->returned() == 0) &&
         !(parts_.prefill && parts_.prefill->check_layer());
}

bool ComposedMethod::heads_apart() const {
  return decision_scope() == DecisionScope::kHead && !needs_survey() && !parts_.share &&
         parts_.budget->scope() == BudgetScope::kHead && !parts_.store->needs_layer() &&
         !parts_.select->reads_layer();
}

bool ComposedMethod::needs_survey() const {
  return parts_.select->nested() || parts_.budget->scope() == BudgetScope::kModel;
}

MethodNeeds ComposedMethod::needs() const {
  MethodNeeds all = parts_.select->needs();
  all += parts_.merge->needs();
  all += parts_.store->needs();
  if (parts_.read) all += parts_.read->needs();
  all.inputs.reused = parts_.prefill && parts_.prefill->check_layer();
  all.inputs.rope = all.inputs.rope || parts_.rerotate || parts_.rerotate_prompt;
  return all;
}

PrefillPeak ComposedMethod::prefill_peak() const {
  return needs_survey() && !parts_.select->nested() ? PrefillPeak::kAllLayers
                                                    : parts_.select->prefill_peak();
}

Compaction ComposedMethod::compaction() const {
  return parts_.select->bounded() ? parts_.select->compaction(parts_.merge->compaction())
                                  : Compaction::kAppend;
}

std::int32_t ComposedMethod::extra_launches() const {
  // Score update, reduction over the group and argmin of a scoring selector; the merge adds its
  // own.
  return (parts_.select->needs().decode_rows ? 4 : 0) + parts_.merge->launches();
}

std::int32_t ComposedMethod::eager_operators(bool has_rows) const {
  // If attention does not return its rows, its product, scaling, softmax, cast and second product
  // replace the fused kernel: four more operators.
  constexpr std::int32_t kRows = 4;
  constexpr std::int32_t kTensors = 2;  // keys and values: write the new slot, or gather the rest
  const SelectRule& select = *parts_.select;
  const bool rows = select.needs().decode_rows || parts_.merge->needs().decode_rows;
  const bool leaves = select.bounded() && select.leaves_in_decode() && !merges();
  return (rows && !has_rows ? kRows : 0) + (leaves ? kTensors : 0) + select.operators() +
         parts_.merge->operators() + parts_.store->operators();
}

std::vector<std::unique_ptr<Selector>> SelectRule::start_heads(
    std::span<const SessionPlace> places) const {
  std::vector<std::unique_ptr<Selector>> all;
  for (const SessionPlace& place : places) all.push_back(start(place));
  return all;
}

std::vector<std::unique_ptr<Merger>> MergeRule::start_heads(const SessionPlace& place,
                                                            std::size_t heads) const {
  std::vector<std::unique_ptr<Merger>> all;
  for (std::size_t h = 0; h < heads; ++h) all.push_back(start(place));
  return all;
}

std::optional<std::int64_t> ComposedMethod::held_within(std::int32_t layer, std::int64_t budget,
                                                        std::int64_t prompt,
                                                        std::int64_t tokens) const {
  const auto held = parts_.select->held_at(layer, budget, prompt, tokens);
  // A rebuilt cache is cut to its budget again, so laws with growth in between do not apply.
  if (refreshes_ && held && tokens > prompt && *held != std::min(budget, tokens)) {
    return std::nullopt;
  }
  return held;
}

std::optional<std::int64_t> ComposedMethod::entries_held(std::int32_t layer, std::int64_t prompt,
                                                         std::int64_t tokens) const {
  if (masks_) return tokens;  // masked entries are still held and read
  if (!has_law_) return std::nullopt;
  const auto budget = parts_.budget->entries(layer);
  return budget ? held_within(layer, *budget, prompt, tokens) : std::nullopt;
}

std::optional<std::int64_t> ComposedMethod::entries_attended(std::int32_t layer,
                                                             std::int64_t prompt,
                                                             std::int64_t tokens) const {
  const auto both = step_entries(layer, prompt, tokens);
  return both ? std::optional{both->attended} : std::nullopt;
}

std::optional<Method::StepEntries> ComposedMethod::step_entries(std::int32_t layer,
                                                                std::int64_t prompt,
                                                                std::int64_t tokens) const {
  if (masks_) return StepEntries{.held = tokens, .attended = tokens};
  if (!has_law_) return std::nullopt;
  const auto budget = parts_.budget->entries(layer);
  if (!budget) return std::nullopt;
  const auto held = held_within(layer, *budget, prompt, tokens);
  if (!held) return std::nullopt;
  const auto attended = parts_.select->attended_at(layer, *budget, prompt, tokens);
  if (!attended) return std::nullopt;
  return StepEntries{.held = *held, .attended = *attended};
}

bool ComposedMethod::appends_in_decode() const {
  return has_law_ && !masks_ && !refreshes_ && !merges() &&
         (!parts_.select->bounded() || !parts_.select->leaves_in_decode());
}

bool ComposedMethod::has_equal_layers() const {
  return parts_.budget->has_equal_layers() && parts_.keeps_recorded.empty();
}

bool ComposedMethod::fixed_rows() const {
  return parts_.store->fixed_rows() && !parts_.select->bounded() && !parts_.share && !parts_.read &&
         !merges();
}

std::int32_t ComposedMethod::stored_heads(const LayerShape& shape) const {
  return parts_.query_head ? shape.n_heads : shape.n_kv_heads;
}

Dtype ComposedMethod::store_dtype(Dtype recorded) const { return parts_.store->dtype(recorded); }

namespace {

double element_bytes(const StoreRule& store, Dtype recorded) {
  return bits_of(store.dtype(recorded)) / 8.0;
}

/// Returns the traffic of a step that attends over `attention_read` bytes of rows, including the
/// additions of each axis.
StepTraffic with_parts(const Composition& parts, const StoreRule& store, double attention_read,
                       const StepEvents& events, const HeadShape& shape) {
  StepTraffic one;
  one.attention_read = attention_read;
  one.append_write = 2.0 * shape.head_dim * element_bytes(store, shape.recorded);
  parts.select->add_step(one, events, shape);
  parts.merge->add_step(one, events, shape);
  store.add_step(one, events, shape);
  if (parts.read) parts.read->add_step(one, events, shape);
  if (parts.share) parts.share->add_step(one, events, shape);
  if (parts.rerotate) {
    one.extra_flops += events.attended * 3.0 * shape.head_dim;
    one.rotated += events.attended * shape.head_dim * element_bytes(store, shape.recorded);
  }
  return one;
}

}  // namespace

StepTraffic ComposedMethod::head_traffic(std::int32_t layer, const StepEvents& events,
                                         const HeadShape& shape) const {
  const StoreRule& store = parts_.store_of(layer);
  const double read = events.read >= 0 ? events.read : events.attended;
  const double whole =
      events.stored >= 0
          ? events.stored
          : static_cast<double>(store
                                    .kv_bytes(static_cast<std::int64_t>(events.prompt),
                                              static_cast<std::int64_t>(events.attended),
                                              shape.head_dim, shape.recorded)
                                    .count());
  return with_parts(parts_, store, events.attended > 0 ? whole * (read / events.attended) : 0.0,
                    events, shape);
}

StepTraffic ComposedMethod::decode_traffic(std::int32_t layer, const LayerShape& shape,
                                           Dtype recorded, double attended, bool evicts) const {
  const StoreRule& store = parts_.store_of(layer);
  const std::int32_t heads = stored_heads(shape);
  const StepEvents events{.attended = attended,
                          .read = parts_.read ? parts_.read->entries_read(layer, attended) : -1,
                          .left = evicts ? 1.0 : 0.0,
                          .merged = evicts && merges() ? 1.0 : 0.0,
                          .prompt = 0,
                          .stored = -1,
                          .shared = in_pair(layer) ? 1.0 : 0.0};
  const HeadShape head{.group = shape.n_heads / heads,
                       .head_dim = shape.head_dim,
                       .recorded = recorded,
                       .stored = store.dtype(recorded)};
  // Fractions of an entry are means over a batch, so they are scaled, not truncated.
  StepTraffic one = store.rounds() ? head_traffic(layer, events, head)
                                   : with_parts(parts_, store,
                                                (events.read >= 0 ? events.read : attended) * 2.0 *
                                                    shape.head_dim * element_bytes(store, recorded),
                                                events, head);
  if (parts_.read) one.link_read += parts_.read->link_bytes(attended, head);
  return one * heads;
}

bool ComposedMethod::in_pair(std::int32_t layer) const {
  return parts_.n_layers > 0 && (starts_pair(layer, parts_.n_layers) ||
                                 (layer > 0 && starts_pair(layer - 1, parts_.n_layers)));
}

std::int32_t ComposedMethod::layer_kind(std::int32_t layer) const {
  // Readers and prefills may treat the first layers differently, and budgets may keep some whole;
  // the two layers of a pair are equal.
  const std::int32_t read = parts_.read ? parts_.read->layer_kind(layer) : 0;
  const std::int32_t prefill = parts_.prefill ? parts_.prefill->layer_kind(layer) : 0;
  return 32 * read + 8 * prefill + (parts_.keeps(layer) ? 4 : 0) +
         (parts_.budget->keeps_whole(layer) ? 2 : 0) + (in_pair(layer) ? 1 : 0);
}

std::optional<CacheBytes> ComposedMethod::layer_bytes(std::int32_t layer, const LayerShape& shape,
                                                      Dtype recorded, std::int64_t prompt,
                                                      std::int64_t tokens) const {
  const auto entries = entries_held(layer, prompt, tokens);
  const auto after_prompt = entries_held(layer, prompt, prompt);
  if (!entries || !after_prompt) return std::nullopt;
  if (parts_.select->bounded() && (!parts_.store_of(layer).by_count() || parts_.share))
    return std::nullopt;
  if (in_pair(layer)) {  // rows stored separately by both layers may depend on data
    const auto shared = parts_.share->layer_bytes(shape, recorded, *parts_.store, prompt, *entries);
    if (!shared) return std::nullopt;
  }
  CacheBytes all = rows_bytes(layer, shape, recorded, *after_prompt, *entries);
  const HeadShape head{.group = shape.n_heads / stored_heads(shape),
                       .head_dim = shape.head_dim,
                       .recorded = recorded,
                       .stored = parts_.store_of(layer).dtype(recorded)};
  all.host += parts_.merge->host_bytes(tokens, head) * stored_heads(shape);
  return all;
}

HeadShape ComposedMethod::head_of(std::int32_t layer, const LayerShape& shape,
                                  Dtype recorded) const {
  return {.group = parts_.query_head ? 1 : shape.n_heads / shape.n_kv_heads,
          .head_dim = shape.head_dim,
          .recorded = recorded,
          .stored = parts_.store_of(layer).dtype(recorded)};
}

Bytes ComposedMethod::side_of_axes(std::int32_t layer, std::int64_t heads, const HeadShape& head,
                                   std::int64_t entries) const {
  const std::int64_t carriers = parts_.budget->keeps_whole(layer)  ? 0
                                : parts_.select->shared_by_layer() ? 1
                                                                   : heads;
  return parts_.select->side_bytes(entries, head) * carriers +
         (parts_.merge->side_bytes(entries, head) + parts_.budget->side_bytes_per_head()) * heads;
}

Bytes ComposedMethod::side_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                                 std::int64_t prompt_entries, std::int64_t entries) const {
  return plain_ ? side_of_axes(layer, stored_heads(shape), head_of(layer, shape, recorded), entries)
                : rows_bytes(layer, shape, recorded, prompt_entries, entries).side;
}

CacheBytes ComposedMethod::rows_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                                      std::int64_t prompt_entries, std::int64_t entries) const {
  const std::int64_t heads = stored_heads(shape);
  const HeadShape head = head_of(layer, shape, recorded);
  CacheBytes all;
  all.side = side_of_axes(layer, heads, head, entries);
  double pair_share = 1;  // relative to the bytes of layers that do not share
  if (in_pair(layer)) {
    const auto shared =
        parts_.share->layer_bytes(shape, recorded, *parts_.store, prompt_entries, entries);
    if (shared) {
      all += *shared;
      return all;
    }
    // The number of rows that both layers of a pair keep depends on the data, so the share's
    // estimate is used.
    pair_share = 1 - (1 - parts_.share->bytes_share()) / paired_layers_;
  }
  const Bytes kv =
      parts_.store_of(layer).kv_bytes(prompt_entries, entries, shape.head_dim, recorded);
  CacheBytes one{.kv = kv, .side = Bytes{0}, .host = Bytes{0}};
  if (parts_.read) one = parts_.read->cache_bytes(layer, kv, prompt_entries, entries, head);
  const Bytes rows = one.kv * heads;
  all.kv += pair_share == 1 ? rows : rounded<Bytes>(static_cast<double>(rows.count()) * pair_share);
  all.side += one.side * heads;
  all.host += one.host * heads;
  return all;
}

PrefillExtra ComposedMethod::prefill_extra(std::int32_t layer, const LayerShape& shape,
                                           Dtype recorded, std::int64_t prompt) const {
  PrefillExtra all;
  const auto add = [&all](const PrefillExtra& one) {
    all.flops += one.flops;
    all.read += one.read;
    all.written += one.written;
    all.transient = std::max(all.transient, one.transient);
    all.launches += one.launches;
    all.prefill_repeats += one.prefill_repeats;
  };
  add(parts_.select->prefill_extra(shape, recorded, prompt));
  add(parts_.merge->prefill_extra(shape, recorded, prompt));
  add(parts_.store_of(layer).prefill_extra(shape, recorded, prompt));
  if (parts_.read) add(parts_.read->prefill_extra(shape, recorded, prompt));
  if (parts_.rerotate_prompt) {  // every kept key is read, rotated and written
    const std::int64_t kept =
        std::min(parts_.budget->entries(layer).value_or(prompt), prompt) * stored_heads(shape);
    const double bytes = static_cast<double>(kept) * shape.head_dim * bits_of(recorded) / 8.0;
    PrefillExtra rotation;
    rotation.flops = static_cast<double>(kept) * 3.0 * shape.head_dim;
    rotation.read = bytes;
    rotation.written = bytes;
    rotation.launches = 1;
    add(rotation);
  }
  if (parts_.prefill) {
    all.flops += parts_.prefill->choice_flops(prompt, shape.head_dim) * shape.n_heads;
    all.launches += parts_.prefill->launches();
  }
  if (in_pair(layer)) {  // each layer of a pair is charged half of the work of sharing
    PrefillExtra half = parts_.share->prefill_extra(shape, recorded, prompt);
    half.flops /= 2;
    half.read /= 2;
    half.written /= 2;
    half.launches = (half.launches + 1) / 2;
    add(half);
  }
  return all;
}

PromptPart ComposedMethod::prompt_part(std::int32_t layer) const {
  if (parts_.prefill) return parts_.prefill->part(layer);
  if (!parts_.select->nested()) return {};
  // A layer has only the tokens that the previous layer passed on.
  const auto all = parts_.budget->entries(0), here = parts_.budget->entries(layer);
  if (!all || !here || *here >= *all) return {};
  const double share = static_cast<double>(*here) / static_cast<double>(*all);
  return {.computed = share, .attended = share};
}

PrefillExtra ComposedMethod::masked_step(std::int32_t /*layer*/, const LayerShape& shape,
                                         Dtype recorded, std::int64_t tokens) const {
  return parts_.merge->masked_step(shape, recorded, tokens);
}

const ComposedMethod& as_composed(const Method& method) {
  const auto* composed = dynamic_cast<const ComposedMethod*>(&method);
  KVSIM_CHECK(composed != nullptr, "method \"{}\" is not a composition", method.name());
  return *composed;
}

namespace {

constexpr double StepTraffic::*kTrafficFields[] = {
    &StepTraffic::attention_read,  &StepTraffic::append_write, &StepTraffic::score_row_read,
    &StepTraffic::score_row_write, &StepTraffic::side_read,    &StepTraffic::side_write,
    &StepTraffic::move_read,       &StepTraffic::move_write,   &StepTraffic::link_read,
    &StepTraffic::link_write,      &StepTraffic::extra_flops,  &StepTraffic::rotated,
    &StepTraffic::repacked,        &StepTraffic::recopied,     &StepTraffic::scratch};

}  // namespace

StepTraffic& StepTraffic::operator+=(const StepTraffic& other) {
  for (double StepTraffic::*field : kTrafficFields) this->*field += other.*field;
  return *this;
}

StepTraffic StepTraffic::operator*(double times) const {
  StepTraffic all;
  for (double StepTraffic::*field : kTrafficFields) all.*field = this->*field * times;
  return all;
}

TraceInputs& TraceInputs::operator+=(const TraceInputs& other) {
  hidden = hidden || other.hidden;
  output_projection = output_projection || other.output_projection;
  rope = rope || other.rope;
  repeat = repeat || other.repeat;
  token_ids = token_ids || other.token_ids;
  separator_ids = separator_ids || other.separator_ids;
  reused = reused || other.reused;
  for (const std::string& name : other.per_head) {
    if (std::find(per_head.begin(), per_head.end(), name) == per_head.end()) {
      per_head.push_back(name);
    }
  }
  for (const PredictedScores& one : other.predicted) {
    if (std::none_of(predicted.begin(), predicted.end(),
                     [&one](const PredictedScores& each) { return each.name == one.name; })) {
      predicted.push_back(one);
    }
  }
  return *this;
}

MethodNeeds& MethodNeeds::operator+=(const MethodNeeds& other) {
  if (other.prompt_scores > prompt_scores) {
    prompt_scores = other.prompt_scores;
    score_exec = other.score_exec;
    retries_smaller_chunks = other.retries_smaller_chunks;
    score_copies = other.score_copies;
    fp32_softmax = other.fp32_softmax;
  }
  prompt_window = std::max(prompt_window, other.prompt_window);
  decode_rows = decode_rows || other.decode_rows;
  inputs += other.inputs;
  return *this;
}

std::optional<CacheBytes> Method::layer_bytes(std::int32_t layer, const LayerShape& shape,
                                              Dtype recorded, std::int64_t prompt,
                                              std::int64_t tokens) const {
  const auto entries = entries_held(layer, prompt, tokens);
  const auto after_prompt = entries_held(layer, prompt, prompt);
  if (!entries || !after_prompt) return std::nullopt;
  return rows_bytes(layer, shape, recorded, *after_prompt, *entries);
}

std::optional<Method::StepEntries> Method::step_entries(std::int32_t layer, std::int64_t prompt,
                                                        std::int64_t tokens) const {
  const auto held = entries_held(layer, prompt, tokens);
  const auto attended = entries_attended(layer, prompt, tokens);
  if (!held || !attended) return std::nullopt;
  return StepEntries{.held = *held, .attended = *attended};
}

void Method::heads_held(std::int32_t layer, std::int64_t prompt, std::int64_t tokens,
                        std::span<std::int64_t> held) const {
  const auto entries = entries_held(layer, prompt, tokens);
  KVSIM_CHECK(entries.has_value(), "the entries that {} keeps depend on the data", name());
  std::fill(held.begin(), held.end(), *entries);
}

CacheBytes Method::rows_bytes(std::int32_t /*layer*/, const LayerShape& shape, Dtype recorded,
                              std::int64_t /*prompt_entries*/, std::int64_t entries) const {
  const std::int64_t heads = stored_heads(shape);
  return {.kv = bytes_of(2 * entries * heads * shape.head_dim, store_dtype(recorded)),
          .side = Bytes{0},
          .host = Bytes{0}};
}

namespace {

std::int64_t part_of(double share, std::int64_t tokens) {
  const auto part = static_cast<std::int64_t>(share * static_cast<double>(tokens) + kShareRounding);
  return std::clamp<std::int64_t>(part, 1, tokens);
}

}  // namespace

std::int64_t PromptPart::computed_of(std::int64_t tokens) const {
  return part_of(computed, tokens);
}
std::int64_t PromptPart::attended_of(std::int64_t tokens) const {
  return part_of(attended, tokens);
}

PrefillExtra Method::prefill_extra(std::int32_t /*layer*/, const LayerShape& /*shape*/,
                                   Dtype /*recorded*/, std::int64_t /*prompt*/) const {
  return {};
}

PrefillExtra Method::masked_step(std::int32_t /*layer*/, const LayerShape& /*shape*/,
                                 Dtype /*recorded*/, std::int64_t /*tokens*/) const {
  return {};
}

bool is_full_or_format(const Method& method) {
  if (method.name() == "full") return true;
  const auto* composed = dynamic_cast<const ComposedMethod*>(&method);
  return method.fixed_rows() &&
         (composed == nullptr || (!composed->parts().prefill && !composed->parts().tier));
}

std::optional<Bytes> layer_cache_bytes(const Method& method, std::int32_t layer,
                                       const LayerShape& shape, Dtype recorded, std::int64_t prompt,
                                       std::int64_t tokens) {
  const auto bytes = method.layer_bytes(layer, shape, recorded, prompt, tokens);
  if (!bytes) return std::nullopt;
  return bytes->kv + bytes->side;
}

}  // namespace kvsim
