// From a method's name, parameters and budget to a settled composition.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "models/methods/composed.hpp"
#include "models/methods/params.hpp"
#include "models/methods/presets.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

/// Every axis' choice when nothing else is said.
const std::map<std::string, std::string>& neutral_axes() {
  static const std::map<std::string, std::string> axes{{"select", "all"}, {"budget", "none"},
                                                       {"merge", "drop"}, {"share", "none"},
                                                       {"read", "all"},   {"store", "recorded"}};
  return axes;
}

/// A name taken apart, before any number is settled.
struct Parsed {
  std::string name;
  std::map<std::string, std::string> axes = neutral_axes();
  std::map<std::string, std::string> chosen_by;  // axis -> the part of the name that chose it
  Params defaults;
  double default_budget = 0;
};

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : presets()) {
    if (preset.info.name == name) return &preset;
  }
  return nullptr;
}

std::vector<std::string> split(std::string_view name) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (true) {
    const std::size_t plus = name.find('+', at);
    parts.emplace_back(name.substr(at, plus == std::string_view::npos ? plus : plus - at));
    if (plus == std::string_view::npos) return parts;
    at = plus + 1;
  }
}

void choose(Parsed& parsed, const std::string& axis, const std::string& choice,
            const std::string& by) {
  if (const auto [at, fresh] = parsed.chosen_by.emplace(axis, by); !fresh) {
    throw InputError{fmt::format("method \"{}\": two choices on the axis {}: \"{}\" and \"{}\"",
                                 parsed.name, axis, at->second, by)};
  }
  parsed.axes[axis] = choice;
}

void choose_axis(Parsed& parsed, const std::string& part, std::size_t equals) {
  const std::string axis = part.substr(0, equals);
  const std::string choice = part.substr(equals + 1);
  std::vector<std::string> known;
  bool axis_known = false;
  for (const AxisChoice& each : axis_choices()) {
    if (each.axis != axis) continue;
    axis_known = true;
    known.emplace_back(each.name);
  }
  if (!axis_known) {
    std::vector<std::string> axes;
    for (const auto& [name, neutral] : neutral_axes()) axes.push_back(name);
    throw InputError{
        fmt::format("method \"{}\": {}", parsed.name, unknown_name("axis", axis, axes))};
  }
  if (std::find(known.begin(), known.end(), choice) == known.end()) {
    throw InputError{fmt::format("method \"{}\": {}", parsed.name,
                                 unknown_name(axis + " choice", choice, known))};
  }
  choose(parsed, axis, choice, part);
}

Parsed parse_name(const std::string& name) {
  Parsed parsed;
  parsed.name = name;
  for (const std::string& part : split(name)) {
    if (const Preset* preset = find_preset(part)) {
      for (const auto& [axis, choice] : preset->info.axes) {
        if (choice != neutral_axes().at(axis)) choose(parsed, axis, choice, part);
      }
      parsed.defaults.insert(preset->defaults.begin(), preset->defaults.end());
      parsed.default_budget = std::max(parsed.default_budget, preset->default_budget);
    } else if (const std::size_t equals = part.find('='); equals != std::string::npos) {
      choose_axis(parsed, part, equals);
    } else {
      std::vector<std::string> known;
      for (const Preset& each : presets()) known.push_back(each.info.name);
      throw InputError{unknown_name("method", part, known)};
    }
  }
  return parsed;
}

/// Combinations that mean nothing are refused with the reason.
void check_legality(Parsed& parsed) {
  const auto refuse = [&](std::string_view reason) {
    throw InputError{fmt::format("method \"{}\": {}", parsed.name, reason)};
  };
  if (parsed.axes["select"] == "all") {
    if (parsed.axes["merge"] != "drop")
      refuse("select=all lets nothing leave, so there is nothing to merge");
    if (parsed.axes["budget"] != "none")
      refuse("select=all lets nothing leave, so a budget has no meaning");
    return;
  }
  if (parsed.axes["budget"] == "none") {
    if (parsed.chosen_by.contains("budget")) {
      refuse(fmt::format("select={} drops entries, so it needs a budget", parsed.axes["select"]));
    }
    parsed.axes["budget"] = "uniform";
  }
}

std::vector<ParamInfo> declared_params(const Parsed& parsed) {
  std::vector<ParamInfo> declared;
  for (const AxisChoice& choice : axis_choices()) {
    if (parsed.axes.at(std::string{choice.axis}) != choice.name) continue;
    for (ParamInfo info : choice.params) {
      if (const auto found = parsed.defaults.find(info.name); found != parsed.defaults.end()) {
        info.default_value = found->second;
      }
      declared.push_back(std::move(info));
    }
  }
  declared.push_back(*find_param(presets().front().info.params, "granularity"));
  return declared;
}

bool was_given(const MethodSpec& spec, const std::vector<ParamInfo>& declared,
               std::string_view name) {
  const ParamInfo* wanted = find_param(declared, name);
  return wanted != nullptr &&
         std::any_of(spec.params.begin(), spec.params.end(), [&](const auto& given) {
           return find_param(declared, given.first) == wanted;
         });
}

/// The most entries per layer that hold at most `share` of the prompt's entries, where a layer with
/// a sliding window holds no more than that anyway. Without windows: share * prompt, truncated in
/// doubles as the released codes do.
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

/// Entries per stored head that `budget` buys: a share of the full cache's K and V bytes.
std::int64_t budget_entries(const std::string& method, const Budget& budget, std::int64_t prompt,
                            const MethodSite& site, bool query_head, Dtype stored) {
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
  if (stored != site.recorded) share = share * bits_of(site.recorded) / bits_of(stored);
  const std::int64_t whole = entries_of_share(share, prompt, site.windows);
  if (whole < 1) {
    throw InputError{fmt::format("method \"{}\": budget {} of {} prompt tokens is no entry at all",
                                 method, budget.fraction, prompt)};
  }
  return whole;
}

ScoreExec score_exec_of(const std::string& word) {
  if (word == "eager_chunked") return ScoreExec::kEagerChunked;
  if (word == "fused_two_pass") return ScoreExec::kFusedTwoPass;
  return ScoreExec::kEager;
}

/// Budget and parameters on their way from what was given to what the rules need.
class Settler {
 public:
  Settler(const MethodSpec& spec, std::int64_t prompt, const MethodSite& site)
      : spec_{spec}, prompt_{prompt}, site_{site}, parsed_{parse_name(spec.name)} {
    check_legality(parsed_);
    declared_ = declared_params(parsed_);
    parts_.name = spec.name;
    parts_.params = settle_params(spec.name, declared_, spec.params);
  }

  std::shared_ptr<const Method> settle() {
    parts_.store = make_store(parsed_.axes.at("store"));
    parts_.query_head = param_word(parts_.params, "granularity") == "query_head";
    if (parts_.params.contains("positions")) {
      parts_.rerotate = param_word(parts_.params, "positions") == "rerotate";
    }
    const std::string& select = parsed_.axes.at("select");
    if (select == "all") {
      settle_all();
    } else if (select == "recent") {
      settle_recent();
    } else {
      settle_accumulated();
    }
    if (parsed_.axes.at("budget") != "none") {
      parts_.budget = make_budget_uniform(entries_);
      parts_.params["budget"] = entries_;
    }
    return std::make_shared<ComposedMethod>(std::move(parts_));
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw InputError{fmt::format("method \"{}\": {}", spec_.name, why)};
  }
  [[nodiscard]] bool given(std::string_view name) const {
    return was_given(spec_, declared_, name);
  }

  [[nodiscard]] std::int64_t asked_entries(const Budget& budget) const {
    return budget_entries(spec_.name, budget, prompt_, site_, parts_.query_head,
                          parts_.store->dtype(site_.recorded));
  }

  void settle_all() {
    if (spec_.budget) refuse("it keeps every token and takes no budget");
    parts_.select = make_select_all();
    parts_.merge = make_merge_drop();
    parts_.budget = make_budget_uniform(kUnbounded);
    parts_.bounded = false;
  }

  void settle_recent() {
    RecentSettings settings{.sinks = param_integer(parts_.params, "n_sink"),
                            .window = param_integer(parts_.params, "window")};
    if (spec_.budget) {
      if (settings.window > 0)
        refuse("budget and window are both given; one follows from the other");
      entries_ = asked_entries(*spec_.budget);
      settings.window = entries_ - settings.sinks;
      if (settings.window < 1) {
        refuse(fmt::format(
            "a budget of {} entries leaves no window beside {} sinks (expected at least {})",
            entries_, settings.sinks, settings.sinks + 1));
      }
    } else {
      if (settings.window == 0) settings.window = RecentSettings{}.window;
      entries_ = settings.sinks + settings.window;
    }
    parts_.params["window"] = settings.window;
    parts_.select = make_select_recent(settings);
    settle_merge(0);
  }

  void settle_accumulated() {
    const double recent = param_number(parts_.params, "recent");
    const double heavy = param_number(parts_.params, "heavy");
    const bool residual = parsed_.axes.at("merge") == "residual";
    const bool sizes_given = given("heavy") && given("recent") && heavy >= 1 && recent >= 1;
    if (spec_.budget) {
      if (sizes_given)
        refuse("budget, heavy and recent are all given; one follows from the others");
      entries_ = asked_entries(*spec_.budget);
    } else if (sizes_given) {
      entries_ = static_cast<std::int64_t>(heavy) + static_cast<std::int64_t>(recent);
    } else {
      const double fraction = parsed_.default_budget > 0 ? parsed_.default_budget : 0.2;
      entries_ = asked_entries({.fraction = fraction, .entries = 0});
    }
    std::int64_t tail =
        recent >= 0 ? share_or_count(recent, entries_) : entries_ - share_or_count(heavy, entries_);
    if (residual && recent < 1)
      tail = std::max<std::int64_t>(tail, 2);  // ZeroMerge's code: at least 2
    const std::int64_t sinks = param_integer(parts_.params, "sinks");
    const std::int64_t slots = settle_merge(entries_ - tail);

    const bool late = param_word(parts_.params, "eviction_candidates") == "code";
    const bool short_ring = param_word(parts_.params, "tail_ring") == "code";
    const std::int64_t tail_decode = tail - (short_ring ? 1 : 0) + (late ? 1 : 0);
    const std::int64_t room = entries_ - slots - sinks - std::max(tail, tail_decode);
    if (room < (residual ? 1 : 0)) {
      refuse(fmt::format(
          "a budget of {} entries has no room for a tail of {}, {} residual slots and {} "
          "sinks{}",
          entries_, std::max(tail, tail_decode), slots, sinks,
          residual ? " (expected B > B_p + B_r)" : ""));
    }
    parts_.params["recent"] = tail;
    parts_.params["heavy"] = entries_ - slots - tail;
    parts_.select = make_select_accumulated(
        {.decay = param_number(parts_.params, "decay"),
         .sinks = sinks,
         .recent_prompt = tail,
         .recent_decode = tail_decode,
         .score_exec = score_exec_of(param_word(parts_.params, "score_exec")),
         // ZeroMerge's code holds three matrices in the cache's dtype; Hugging Face's eager
         // attention logits, an fp32 softmax and its cast.
         .score_copies = residual ? 3 : 2,
         .fp32_softmax = !residual,
         .retries_smaller_chunks = residual,
         .score_in_cache_dtype = residual && param_word(parts_.params, "count_dtype") == "kv"});
  }

  /// Settles the merge axis where `beyond_tail` entries are not the tail; returns its slots.
  std::int64_t settle_merge(std::int64_t beyond_tail) {
    if (parsed_.axes.at("merge") == "drop") {
      parts_.merge = make_merge_drop();
      return 0;
    }
    if (parsed_.axes.at("select") != "accumulated") {
      refuse("residual slots need scores: expected select=accumulated");
    }
    const double asked = param_number(parts_.params, "residual_slots");
    std::int64_t slots = share_or_count(asked, beyond_tail);
    if (asked > 0) slots = std::max<std::int64_t>(slots, 1);
    parts_.params["residual_slots"] = slots;
    parts_.merge = make_merge_residual(
        {.slots = slots,
         .alpha = param_number(parts_.params, "alpha"),
         .l2_metric = param_word(parts_.params, "metric") == "l2",
         .score_max = param_word(parts_.params, "score_update") == "max",
         .one_by_one = param_word(parts_.params, "prefill") == "online",
         .ring_layout = param_word(parts_.params, "layout") == "ring",
         .count_in_cache_dtype = param_word(parts_.params, "count_dtype") == "kv",
         .recorded = parts_.store->dtype(site_.recorded)});
    return slots;
  }

  const MethodSpec& spec_;
  std::int64_t prompt_;
  const MethodSite& site_;
  Parsed parsed_;
  std::vector<ParamInfo> declared_;
  Composition parts_;
  std::int64_t entries_ = 0;
};

}  // namespace

std::shared_ptr<const Method> make_method(const MethodSpec& spec, std::int64_t prompt,
                                          const MethodSite& site) {
  if (prompt < 1) throw InputError{fmt::format("method \"{}\": the prompt is empty", spec.name)};
  return Settler{spec, prompt, site}.settle();
}

MethodInfo describe_method(const std::string& name) {
  if (const Preset* preset = find_preset(name)) return preset->info;
  Parsed parsed = parse_name(name);
  check_legality(parsed);
  MethodInfo info;
  info.name = name;
  info.axes = parsed.axes;
  info.params = declared_params(parsed);
  std::string parts;
  for (const std::string& part : split(name)) {
    parts += fmt::format("{}{}", parts.empty() ? "" : ", ", part);
    const Preset* preset = find_preset(part);
    if (preset == nullptr || preset->info.paper.empty()) continue;
    info.paper += fmt::format("{}{}", info.paper.empty() ? "" : "; ", preset->info.paper);
  }
  info.summary = "composed of " + parts;
  for (const Preset& preset : presets()) {
    const auto& axes = preset.info.axes;
    if (axes.at("select") != parsed.axes["select"] || axes.at("merge") != parsed.axes["merge"]) {
      continue;
    }
    info.size_law = preset.info.size_law;
    info.cost_class = preset.info.cost_class;
    break;
  }
  return info;
}

bool takes_budget(std::string_view name) {
  return parse_name(std::string{name}).axes.at("select") != "all";
}

}  // namespace kvsim
