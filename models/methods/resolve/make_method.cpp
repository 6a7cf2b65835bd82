// Resolves a method's name, parameters and budget to a composition.

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/methods/composed.hpp"
#include "models/methods/params.hpp"
#include "models/methods/resolve/choices.hpp"
#include "models/methods/resolve/named.hpp"
#include "models/methods/resolve/on_layers.hpp"
#include "models/methods/store/store.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

bool was_given(const MethodSpec& spec, const std::vector<ParamInfo>& declared,
               std::string_view name) {
  const ParamInfo* wanted = find_param(declared, name);
  return wanted != nullptr &&
         std::any_of(spec.params.begin(), spec.params.end(), [&](const auto& given) {
           return find_param(declared, given.first) == wanted;
         });
}

/// Returns the largest number of entries per layer whose total is at most `share` of the prompt's
/// entries. A layer with a sliding window never holds more than the window. Without windows: share
/// * prompt, truncated in double precision as in the released implementations.
std::int64_t entries_of_share(double share, std::int64_t prompt,
                              const std::vector<std::int64_t>& windows) {
  const auto plain = static_cast<std::int64_t>(share * static_cast<double>(prompt));
  const auto cap = [prompt](std::int64_t window) {
    return window > 0 ? std::min(window, prompt) : prompt;
  };
  if (std::all_of(windows.begin(), windows.end(), [&](auto w) { return cap(w) == prompt; })) {
    return plain;
  }
  double full = 0;
  for (const std::int64_t window : windows) full += static_cast<double>(cap(window));
  const auto held = [&](std::int64_t entries) {
    double sum = 0;
    for (const std::int64_t window : windows) {
      sum += static_cast<double>(std::min(entries, cap(window)));
    }
    return sum;
  };
  std::int64_t low = 0;
  std::int64_t high = prompt;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (held(middle) <= share * full) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Returns the entries per stored head within `budget`, a share of the full cache's K and V bytes.
std::int64_t budget_entries_of(const std::string& method, const Budget& budget, std::int64_t prompt,
                               const MethodContext& site, bool query_head, double stored_bits) {
  if (budget.fraction <= 0) {
    if (budget.entries < 1) {
      throw InputError{
          fmt::format("method \"{}\": budget: expected a fraction in (0, 1] or a number of "
                      "entries >= 1, got {}",
                      method, budget.entries)};
    }
    return budget.entries;
  }
  if (!(budget.fraction <= 1.0)) {
    throw InputError{fmt::format("method \"{}\": budget: expected a fraction in (0, 1], got {}",
                                 method, budget.fraction)};
  }
  double share = budget.fraction;
  if (query_head && site.shape.n_kv_heads > 0) {
    share = share * site.shape.n_kv_heads / site.shape.n_heads;
  }
  if (stored_bits != bits_of(site.recorded)) share = share * bits_of(site.recorded) / stored_bits;
  const std::int64_t whole = entries_of_share(share, prompt, site.windows);
  if (whole < 1) {
    throw InputError{
        fmt::format("method \"{}\": budget {} of {} prompt tokens is less than one entry", method,
                    budget.fraction, prompt)};
  }
  return whole;
}

/// The only implementation of MethodResolver: budget and parameters of one method.
class CatalogueResolver final : public MethodResolver {
 public:
  CatalogueResolver(const MethodSpec& spec, std::int64_t prompt, const MethodContext& site)
      : spec_{spec},
        prompt_{prompt},
        site_{site},
        named_{named(spec.name)},
        parsed_{named_->parsed},
        declared_{named_->declared},
        was_read_(declared_.size()) {
    parts_.name = spec.name;
    parts_.declared =
        spec.params.empty()
            ? std::shared_ptr<const Params>{named_, &named_->defaults}
            : std::make_shared<const Params>(resolve_params(spec.name, declared_, spec.params));
    parts_.recorded = site.recorded;
    parts_.n_layers = layers_known();
  }

  std::shared_ptr<const Method> resolve() {
    parts_.query_head = word("granularity") == "query_head";
    parts_.rerotate = parts_.declared->contains("positions") && word("positions") == "rerotate";
    parts_.store = make<MakeStore>("store");
    if (parts_.declared->contains("keep_layers")) parts_.keeps_recorded = kept_layers(*this);
    parts_.share = make<MakeShare>("share");
    parts_.select = make<MakeSelect>("select");
    parts_.rerotate_prompt = parts_.rerotate && parts_.select->rerotates_once();
    parts_.rerotate = parts_.rerotate && !parts_.rerotate_prompt;
    parts_.budget = make<MakeBudget>("budget");
    parts_.merge = make<MakeMerge>("merge");
    parts_.read = make<MakeRead>("read");
    parts_.tier = make<MakeTier>("tier");
    parts_.prefill = make<MakePrefill>("prefill");
    if (entries_ > 0 && entries_ < std::numeric_limits<std::int64_t>::max()) {
      parts_.solved["budget"] = entries_;
    }
    refuse_what_cannot_be();
    for (std::size_t i = 0; i < declared_.size(); ++i) {
      if (was_read_[i]) continue;
      const ParamInfo& info = declared_[i];
      // A parameter with a single allowed word describes a fixed property.
      if (given(info.name) && info.words.size() != 1) refuse_unread(info);
      parts_.unread.push_back(info.name);
    }
    return std::make_shared<ComposedMethod>(std::move(parts_));
  }

  [[noreturn]] void refuse(const std::string& why) const override {
    throw InputError{fmt::format("method \"{}\": {}", spec_.name, why)};
  }
  const std::string& method() const override { return spec_.name; }
  std::int64_t prompt() const override { return prompt_; }
  const MethodContext& site() const override { return site_; }
  std::int32_t n_layers() const override {
    if (layers_known() == 0)
      refuse("its size law requires the number of layers, which is not known here");
    return layers_known();
  }
  const std::string& choice(const std::string& axis) const override {
    return parsed_.axes.at(axis);
  }
  const StoreRule& store() const override {
    KVSIM_CHECK(parts_.store != nullptr, "the store of \"{}\" is not resolved yet", spec_.name);
    return *parts_.store;
  }
  double number(const std::string& name) const override { return value<double>(name); }
  std::int64_t integer(const std::string& name) const override { return value<std::int64_t>(name); }
  const std::string& word(const std::string& name) const override {
    return value<std::string>(name);
  }
  bool flag(const std::string& name) const override { return value<bool>(name); }
  bool given(std::string_view name) const override { return was_given(spec_, declared_, name); }
  void resolve(const std::string& name, const ParamValue& value) override {
    parts_.solved[name] = value;
  }
  const std::optional<Budget>& budget() const override { return spec_.budget; }
  std::int64_t entries_of(const Budget& budget) const override {
    const double shared = parts_.share ? parts_.share->bytes_share() : 1.0;
    const std::int64_t entries = budget_entries_of(
        spec_.name, budget, prompt_, site_, parts_.query_head,
        shared * store().bits_per_element(std::max(site_.shape.head_dim, 1), site_.recorded));
    const bool windowed = std::any_of(site_.windows.begin(), site_.windows.end(),
                                      [](std::int64_t window) { return window > 0; });
    if (budget.fraction <= 0 || store().by_count() || site_.shape.head_dim == 0 || windowed) {
      return entries;
    }
    return entries_within(budget.fraction / shared);
  }
  std::int64_t budget_entries(double fallback) const override {
    if (spec_.budget) return entries_of(*spec_.budget);
    const double fraction = parsed_.default_budget > 0 ? parsed_.default_budget : fallback;
    return entries_of({.fraction = fraction, .entries = 0});
  }
  std::int64_t entries() const override { return entries_; }
  void set_entries(std::int64_t entries) override { entries_ = entries; }
  std::int64_t reserve_slots(std::int64_t beyond_tail) override {
    const AxisChoice& merge = named_->chosen("merge");
    slots_ = merge.slots != nullptr ? merge.slots(*this, beyond_tail) : 0;
    return slots_;
  }
  std::int64_t slots() const override { return slots_; }

 private:
  template <class Make>
  std::invoke_result_t<Make, MethodResolver&> make(std::string_view axis) {
    return std::get<Make>(named_->chosen(axis).make)(*this);
  }
  [[nodiscard]] const ParamValue& value_of(const std::string& name) const {
    if (const auto found = parts_.solved.find(name); found != parts_.solved.end()) {
      return found->second;
    }
    const auto found = parts_.declared->find(name);
    KVSIM_CHECK(found != parts_.declared->end(), "no parameter \"{}\"", name);
    return found->second;
  }
  template <class T>
  [[nodiscard]] const T& value(const std::string& name) const {
    note_read(name);
    const ParamValue& known = value_of(name);
    KVSIM_CHECK(std::holds_alternative<T>(known), "parameter \"{}\" is of another type", name);
    return std::get<T>(known);
  }
  void note_read(std::string_view name) const {
    for (std::size_t i = 0; i < declared_.size(); ++i) {
      if (declared_[i].name == name) was_read_[i] = true;
    }
  }
  [[nodiscard]] bool was_read(std::string_view name) const {
    for (std::size_t i = 0; i < declared_.size(); ++i) {
      if (declared_[i].name == name) return was_read_[i];
    }
    return false;
  }
  /// Returns a method with the rules only, for evaluation. A sweep resolves thousands of methods,
  /// and copying parameters is slow.
  [[nodiscard]] ComposedMethod rules() const {
    return ComposedMethod{{.name = {},
                           .declared = {},
                           .solved = {},
                           .select = parts_.select,
                           .budget = parts_.budget,
                           .merge = parts_.merge,
                           .store = parts_.store,
                           .keeps_recorded = parts_.keeps_recorded,
                           .share = parts_.share,
                           .read = parts_.read,
                           .tier = parts_.tier,
                           .prefill = parts_.prefill,
                           .recorded = parts_.recorded,
                           .n_layers = parts_.n_layers,
                           .query_head = parts_.query_head,
                           .rerotate = parts_.rerotate,
                           .rerotate_prompt = parts_.rerotate_prompt,
                           .learns_steps = parts_.learns_steps,
                           .unread = {}}};
  }
  /// Refuses a given value that has no effect, and names the settings that leave it unread.
  [[noreturn]] void refuse_unread(const ParamInfo& info) const {
    std::string modes;
    for (const std::string_view axis : kAxes) {
      const AxisChoice& each = named_->chosen(axis);
      if (find_param(each.params, info.name) == nullptr) continue;
      modes += fmt::format("{}{}={}", modes.empty() ? "" : ", ", axis, each.name);
      for (const ParamInfo& mode : each.params) {
        const bool decides =
            !mode.words.empty() || std::holds_alternative<bool>(mode.default_value);
        if (!decides || mode.name == info.name || !was_read(mode.name)) continue;
        modes += fmt::format(", {}={}", mode.name, to_text(value_of(mode.name)));
      }
    }
    refuse(fmt::format("parameter {} is given, but has no effect with {}", info.name,
                       modes.empty() ? "these choices" : modes));
  }
  [[nodiscard]] std::int32_t layers_known() const {
    return site_.n_layers > 0 ? site_.n_layers : static_cast<std::int32_t>(site_.windows.size());
  }
  /// Refuses a layer budget that cannot hold the entries that the selector protects.
  void refuse_small_layers() const {
    const std::int32_t layers =
        parts_.budget->has_equal_layers() ? 1 : std::max(parts_.n_layers, std::int32_t{1});
    const std::int64_t min = parts_.select->min_entries() + parts_.merge->slots();
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      const auto entries = parts_.budget->entries(layer);
      if (!entries || *entries >= min) continue;
      refuse(fmt::format(
          "a budget of {} entries in layer {} (budget={}) is less than the {} that select={} "
          "protects{}",
          *entries, layer, choice("budget"), min, choice("select"),
          parts_.merge->slots() > 0 ? " and the merge sets aside" : ""));
    }
  }
  void refuse_what_cannot_be() const {
    refuse_small_layers();
    if (parts_.merge->prompt_one_by_one() && !parts_.select->leaves_in_decode()) {
      refuse(
          fmt::format("merge={} feeds the prompt token by token through the decode rule, but "
                      "select={} does not have one: it only appends",
                      choice("merge"), choice("select")));
    }
    const ComposedMethod all = rules();
    const MethodNeeds needs = all.needs();
    if (parts_.read && needs.decode_rows) {
      refuse(
          fmt::format("read={} reads part of the cache, so there is no whole attention row to "
                      "score entries by",
                      choice("read")));
    }
    if (parts_.tier && parts_.read && !parts_.read->keeps_rows()) {
      refuse(fmt::format("tier={} returns rows, but read={} attends over other data",
                         choice("tier"), choice("read")));
    }
    if (parts_.prefill && parts_.prefill->check_layer() && !site_.ordinals.empty()) {
      refuse(
          fmt::format("prefill={} loads the rows of whole chunks, but the model has layers without "
                      "keys and values, whose states are not in a chunk",
                      choice("prefill")));
    }
    if (parts_.rerotate && parts_.merge->merges()) {
      refuse("positions=rerotate needs the position of every key, but a merged key has none");
    }
    if (parts_.rerotate_prompt && choice("merge") != "drop") {
      refuse(
          fmt::format("positions=rerotate moves the kept keys of the prompt, but merge={} keeps "
                      "dropped tokens at the old positions: expected merge=drop",
                      choice("merge")));
    }
    if ((parts_.rerotate || parts_.rerotate_prompt) && parts_.store->needs().inputs.rope) {
      refuse(
          fmt::format("store={} reads keys before RoPE at their own positions: expected "
                      "positions=original",
                      choice("store")));
    }
    if (parts_.store->masks() && parts_.merge->merges()) {
      refuse("store=masked leaves every row where it is, so there is no row to merge into");
    }
    if (parts_.share) refuse_what_pairs_cannot();
    if (parts_.merge->refresh_period() > 0 &&
        (parts_.share || all.decision_scope() == DecisionScope::kLayer)) {
      refuse("refresh_period rebuilds the cache of one head, but here heads decide together");
    }
    if (parts_.merge->needs_layer() && parts_.budget->scope() != BudgetScope::kHead &&
        choice("budget") != "variance") {
      refuse(
          fmt::format("merge={} compares the evicted entries of a layer's heads by rank, so all "
                      "heads must evict the same number, but budget={} sets one per head",
                      choice("merge"), choice("budget")));
    }
    const TraceInputs& more = needs.inputs;
    if (parts_.merge->refresh_period() > 0 &&
        (parts_.select->nested() || parts_.select->needs_layer() || parts_.select->reads_layer() ||
         more.hidden || more.output_projection || more.repeat || more.token_ids ||
         !more.per_head.empty() || !more.predicted.empty())) {
      refuse(
          fmt::format("refresh_period rebuilds the cache of one head from its own queries, keys "
                      "and values, but select={} needs more data of the layer",
                      choice("select")));
    }
    if (parts_.share && parts_.query_head) {
      refuse(fmt::format("share={} pairs the rows of KV heads: expected granularity=kv_head",
                         choice("share")));
    }
  }

  /// The largest number of entries whose bytes in the store's format for a prompt are at most
  /// `share` of the full cache's bytes. For formats that treat some rows separately, whose bytes
  /// may not grow with every entry.
  [[nodiscard]] std::int64_t entries_within(double share) const {
    const std::int32_t d = site_.shape.head_dim;
    double bytes = share * static_cast<double>(bytes_of(2 * prompt_ * d, site_.recorded).count());
    if (parts_.query_head && site_.shape.n_kv_heads > 0) {
      bytes = bytes * site_.shape.n_kv_heads / site_.shape.n_heads;
    }
    for (std::int64_t entries = prompt_; entries > 0; --entries) {
      const Bytes stored = store().kv_bytes(entries, entries, d, site_.recorded);
      if (static_cast<double>(stored.count()) <= bytes) return entries;
    }
    refuse(fmt::format("a budget of {} of {} prompt tokens is less than one entry in store={}",
                       share, prompt_, choice("store")));
  }
  void refuse_what_pairs_cannot() const {
    const std::string& share = choice("share");
    if (!parts_.store->rounds_rows_apart() || !parts_.keeps_recorded.empty()) {
      refuse(
          fmt::format("share={} stores some rows separately and joins layers, which store={} does "
                      "not support: its keys and values, or its layers, differ",
                      share, choice("store")));
    }
    if (parts_.merge->merges() || choice("merge") != "drop") {
      refuse(
          fmt::format("share={} joins the two layers' rows of one token, but merge={} makes rows "
                      "that belong to several tokens",
                      share, choice("merge")));
    }
    if (!parts_.budget->has_equal_layers() || parts_.budget->scope() != BudgetScope::kHead) {
      refuse(
          fmt::format("share={} keeps one set of tokens for both layers of a pair, so their "
                      "budgets must be equal, but budget={} sets one per layer or head",
                      share, choice("budget")));
    }
    if (parts_.select->nested()) {
      refuse(
          fmt::format("share={} keeps one set of tokens for both layers of a pair, but select={} "
                      "keeps fewer in the deeper layer",
                      share, choice("select")));
    }
    if (parts_.read) {
      refuse(fmt::format("share={} restores whole layers, so read={} cannot skip entries", share,
                         choice("read")));
    }
  }

  const MethodSpec& spec_;
  std::int64_t prompt_;
  const MethodContext& site_;
  std::shared_ptr<const Named> named_;
  const Parsed& parsed_;
  const std::vector<ParamInfo>& declared_;
  mutable std::vector<bool> was_read_;  // by declared_: whether a maker read it
  Composition parts_;
  std::int64_t entries_ = 0;
  std::int64_t slots_ = 0;
};

}  // namespace

std::shared_ptr<const Method> make_method(const MethodSpec& spec, std::int64_t prompt,
                                          const MethodContext& site) {
  if (prompt < 1) throw InputError{fmt::format("method \"{}\": the prompt is empty", spec.name)};
  auto method = CatalogueResolver{spec, prompt, site}.resolve();
  return site.ordinals.empty() ? method : on_layers(std::move(method), site.ordinals);
}

}  // namespace kvsim
