#include "sim/replay/summary.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "models/methods/resolve/own_methods.hpp"
#include "models/units/check.hpp"
#include "models/units/units_format.hpp"
#include "sim/replay/retrieval.hpp"

namespace kvsim {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double mean(std::span<const float> values) {
  if (values.empty()) return kNone;
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x);
  return sum / static_cast<double>(values.size());
}

/// Adds the sums of one layer to the totals.
void add(ReplayStep& all, const ReplayStep& one) {
  all.entries_held += one.entries_held;
  all.entries_attended += one.entries_attended;
  all.entries_read += one.entries_read;
  all.bytes_held += one.bytes_held;
  all.bytes_attended += one.bytes_attended;
  all.side_bytes += one.side_bytes;
  all.host_bytes += one.host_bytes;
  all.link_bytes += one.link_bytes;
  all.bytes_read += one.bytes_read;
  all.bytes_written += one.bytes_written;
  all.extra_flops += one.extra_flops;
  all.rel_error += one.rel_error;
  all.cosine += one.cosine;
  if (all.retained_mass) *all.retained_mass += one.retained_mass.value_or(0);
}

/// Turns sums over query heads into means.
void scale_means(ReplayStep& step, double share) {
  step.rel_error *= share;
  step.cosine *= share;
  if (step.retained_mass) *step.retained_mass *= share;
}

}  // namespace

double percentile(std::vector<float> values, double share) {
  if (values.empty()) return kNone;
  // NaNs cannot be sorted.
  if (std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); })) {
    return kNone;
  }
  const double rank = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(rank);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(low);
  std::nth_element(values.begin(), at, values.end());
  const auto below = static_cast<double>(*at);
  if (low + 1 == values.size()) return below;
  const auto above = static_cast<double>(*std::min_element(at + 1, values.end()));
  return below + (above - below) * (rank - static_cast<double>(low));
}

ReplaySummary::ReplaySummary(const ComposedMethod& method, const TraceInfo& trace,
                             const ReplayOptions& options, const StepSample& sample)
    : method_{method},
      trace_{trace},
      options_{options},
      sample_{sample},
      paged_{trace.prompt_tokens, trace.tokens},
      step_best_masses_(static_cast<std::size_t>(sample.size())),
      step_answers_(step_best_masses_.size()),
      step_answer_errors_(step_best_masses_.size()) {
  result_.name = method.name();
  result_.params = method.params();
  result_.steps = trace.tokens - trace.prompt_tokens;
  steps_ = blank_steps();
  if (options.kept_positions) result_.kept.resize(static_cast<std::size_t>(trace.n_layers));
}

std::vector<ReplayStep> ReplaySummary::blank_steps() const {
  std::vector<ReplayStep> steps(static_cast<std::size_t>(result_.steps));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].step = static_cast<std::int64_t>(i) + 1;
    steps[i].tokens = trace_.prompt_tokens + steps[i].step;
    if (method_.has_retained_mass()) steps[i].retained_mass = 0.0;
  }
  return steps;
}

void ReplaySummary::add_layer(std::int32_t layer, const std::vector<HeadSeries>& heads) {
  ReplayCell cell;
  cell.layer = trace_.number_of(layer);
  std::int64_t samples = 0;
  // Shares of KV heads, because only these are drawn. A method may store each of their query heads.
  const std::size_t per_kv_head =
      std::max<std::size_t>(1, heads.size() / static_cast<std::size_t>(trace_.n_kv_heads));
  std::vector<double> errors, cosines, masses, best_masses;
  std::vector<SampledRatio::Part> answers;
  double error = 0;
  double cosine = 0;
  double mass = 0;
  double best_mass = 0;
  std::size_t stored = 0;
  std::vector<ReplayStep> steps = blank_steps();
  for (const HeadSeries& head : heads) {
    ReplayCell one;
    const SampledRatio::Part answers_before{retrieval_error_, retrieved_};
    const std::span<const std::int32_t> numbers =
        trace_.samples_heads() ? std::span{trace_.head_numbers[static_cast<std::size_t>(layer)]}
                               : std::span<const std::int32_t>{};
    add_head(steps, one, layer, stored_head_number(numbers, stored, heads.size()), head);
    cell.entries_final += one.entries_final;
    cell.bytes_final += one.bytes_final;
    const auto n = static_cast<std::int64_t>(head.rel_error.size());
    if (n > 0) {
      error += one.rel_error_mean * static_cast<double>(n);
      cosine += one.cosine_mean * static_cast<double>(n);
      mass += one.retained_mass_mean.value_or(0) * static_cast<double>(n);
      best_mass += one.best_mass_mean.value_or(0) * static_cast<double>(n);
      samples += n;
      if (stored % per_kv_head == 0) {
        for (std::vector<double>* of : {&errors, &cosines, &masses, &best_masses}) of->push_back(0);
        answers.emplace_back();
      }
      const double part = 1.0 / static_cast<double>(per_kv_head);
      errors.back() += part * one.rel_error_mean;
      cosines.back() += part * one.cosine_mean;
      masses.back() += part * one.retained_mass_mean.value_or(0);
      best_masses.back() += part * one.best_mass_mean.value_or(0);
      answers.back() +=
          {retrieval_error_ - answers_before.above, retrieved_ - answers_before.below};
    }
    if (options_.per_head) result_.heads.push_back(one);
    if (options_.kept_positions) {
      result_.kept[static_cast<std::size_t>(layer)].push_back(head.kept);
    }
    ++stored;
  }
  const double share = samples > 0 ? 1.0 / static_cast<double>(samples) : kNone;
  cell.rel_error_mean = error * share;
  cell.cosine_mean = cosine * share;
  if (method_.has_retained_mass()) {
    cell.retained_mass_mean = mass * share;
    cell.best_mass_mean = best_mass * share;
  }
  result_.layers.push_back(cell);
  error_means_.add_layer(std::move(errors));
  cosine_means_.add_layer(std::move(cosines));
  mass_means_.add_layer(std::move(masses));
  best_mass_means_.add_layer(std::move(best_masses));
  answer_errors_.add_layer(std::move(answers));
  add_kept(layer, heads);
  measure_law(layer, heads);
  if (!options_.block_sizes.empty()) paged_.add_layer(heads);
  for (std::size_t i = 0; i < steps.size(); ++i) add(steps_[i], steps[i]);
  if (options_.per_step) {
    for (ReplayStep& step : steps) scale_means(step, 1.0 / trace_.n_heads);
    result_.layer_series.push_back(std::move(steps));
  }
  error_sum_ += error;
  cosine_sum_ += cosine;
  mass_sum_ += mass;
  best_mass_sum_ += best_mass;
  samples_ += samples;
}

void ReplaySummary::add_kept(std::int32_t layer, const std::vector<HeadSeries>& heads) {
  std::array<ReplayKept, kKeptRoles> by_role{};
  for (const HeadSeries& head : heads) {
    for (const KeptEntry& entry : head.why) {
      ReplayKept& kept = by_role[static_cast<std::size_t>(entry.role)];
      ++kept.entries;
      kept.tokens += entry.members;
      if (!entry.score) continue;
      kept.score_lowest = std::min(kept.score_lowest.value_or(*entry.score), *entry.score);
      kept.score_highest = std::max(kept.score_highest.value_or(*entry.score), *entry.score);
    }
  }
  for (std::size_t r = 0; r < by_role.size(); ++r) {
    if (by_role[r].entries == 0) continue;
    by_role[r].layer = trace_.number_of(layer);
    by_role[r].role = static_cast<KeptRole>(r);
    result_.kept_by_role.push_back(by_role[r]);
  }
  if (!options_.why_kept || why_entries_ > kMaxWhy) return;
  std::vector<std::vector<KeptEntry>>& of_layer = result_.why.emplace_back();
  for (const HeadSeries& head : heads) {
    why_entries_ += std::ssize(head.why);
    of_layer.push_back(head.why);
  }
}

void ReplaySummary::measure_law(std::int32_t layer, const std::vector<HeadSeries>& heads) {
  double kept = 0;
  double grown = 0;
  double counted = 0;  // K and V, bytes
  double by_law = 0;
  std::vector<double>& head_kept = law_.head_kept.emplace_back();
  std::vector<double>& head_growth = law_.head_growth.emplace_back();
  for (const HeadSeries& head : heads) {
    const auto after = static_cast<double>(head.entries_after_prefill);
    head_kept.push_back(after / static_cast<double>(trace_.prompt_tokens));
    head_growth.push_back(head.costs.empty()
                              ? 0.0
                              : (static_cast<double>(head.costs.back().held) - after) /
                                    static_cast<double>(head.costs.size()));
    kept += head_kept.back();
    grown += head_growth.back();
    const CacheBytes& bytes =
        head.costs.empty() ? head.bytes_after_prefill : head.costs.back().bytes;
    counted += static_cast<double>(bytes.kv.count());
    const CacheBytes rows = method_.rows_bytes(
        trace_.number_of(layer),
        {.n_heads = trace_.n_heads, .n_kv_heads = trace_.n_kv_heads, .head_dim = trace_.head_dim},
        trace_.dtype, head.entries_after_prefill,
        head.costs.empty() ? head.entries_after_prefill : head.costs.back().held);
    by_law += static_cast<double>(rows.kv.count()) / static_cast<double>(heads.size());
  }
  law_.bytes.push_back(by_law > 0 ? counted / by_law : 1.0);
  law_.kept.push_back(kept / static_cast<double>(heads.size()));
  law_.growth.push_back(grown / static_cast<double>(heads.size()));
}

void ReplaySummary::add_head(std::vector<ReplayStep>& steps, ReplayCell& cell, std::int32_t layer,
                             std::int32_t stored, const HeadSeries& head) {
  const auto group = static_cast<std::size_t>(head.queries);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    ReplayStep& step = steps[i];
    const HeadCost& cost = head.costs[i];
    step.entries_held += cost.held;
    step.entries_attended += cost.attended;
    step.entries_read += cost.entries_read;
    step.bytes_held += (cost.bytes.kv + cost.bytes.side).count();
    step.bytes_attended += cost.attended_bytes;
    step.side_bytes += cost.bytes.side.count();
    step.host_bytes += cost.bytes.host.count();
    step.link_bytes += cost.link;
    step.bytes_read += cost.read;
    step.bytes_written += cost.written;
    step.extra_flops += cost.extra_flops;
    const std::int64_t rank = sample_.rank(static_cast<std::int64_t>(i));
    if (rank < 0) {
      step.rel_error = step.cosine = kNone;
      if (step.retained_mass) step.retained_mass = kNone;
      continue;
    }
    const auto row = static_cast<std::size_t>(rank);
    for (std::size_t g = 0; g < group; ++g) {
      const std::size_t at = row * group + g;
      step.rel_error += static_cast<double>(head.rel_error[at]);
      step.cosine += static_cast<double>(head.cosine[at]);
      if (step.retained_mass) {
        *step.retained_mass += static_cast<double>(head.retained_mass[at]);
        step_best_masses_[row] += static_cast<double>(head.best_mass[at]);
      }
      if (head.retrieved.empty()) continue;
      const auto weight = static_cast<double>(head.retrieved[at]);
      step_answers_[row] += weight;
      step_answer_errors_[row] += weight * static_cast<double>(head.rel_error[at]);
      retrieved_ += weight;
      retrieval_error_ += weight * static_cast<double>(head.rel_error[at]);
    }
  }
  errors_.insert(errors_.end(), head.rel_error.begin(), head.rel_error.end());
  const std::int64_t entries =
      head.costs.empty() ? head.entries_after_prefill : head.costs.back().held;
  const CacheBytes bytes = head.costs.empty() ? head.bytes_after_prefill : head.costs.back().bytes;
  cell.layer = trace_.number_of(layer);
  cell.head = stored;
  cell.entries_final = entries;
  cell.bytes_final = (bytes.kv + bytes.side).count();
  cell.rel_error_mean = mean(head.rel_error);
  cell.cosine_mean = mean(head.cosine);
  if (method_.has_retained_mass()) {
    cell.retained_mass_mean = mean(head.retained_mass);
    cell.best_mass_mean = mean(head.best_mass);
  }
  result_.entries_held_final += entries;
  result_.bytes_held_final += cell.bytes_final;
  result_.side_bytes_final += bytes.side.count();
  result_.host_bytes_final += bytes.host.count();
  kv_bytes_after_prefill_ += head.bytes_after_prefill.kv.count();
  trip_ += head.trip;
  prompt_outcome_ += head.prompt_outcome;
  for (const auto& [name, count] : head.counts) result_.counts[name] += count;
}

/// Computes errors by segment and at the answers from the means of steps.
void ReplaySummary::add_segments() {
  std::int64_t steps = 0;
  const auto mean_where = [&](const auto& counts, std::int64_t& n) {
    n = 0;
    double sum = 0;
    for (const ReplayStep& step : steps_) {
      if (!sample_.measures(step.step - 1) || !counts(step.tokens - 1)) continue;
      sum += step.rel_error;
      ++n;
    }
    return n > 0 ? std::optional{sum / static_cast<double>(n)} : std::nullopt;
  };
  for (const TraceSegment& segment : trace_.segments) {
    ReplaySegment one;
    one.name = segment.name;
    one.start = segment.start;
    one.end = segment.end;
    one.rel_error_mean = mean_where(
        [&](std::int64_t position) { return position >= segment.start && position < segment.end; },
        one.steps);
    result_.segments.push_back(std::move(one));
  }
  if (retrieved_ > 0) {
    result_.answer_error_mean = retrieval_error_ / retrieved_;
  } else if (const std::optional<RetrievalMarks> marks = retrieval_marks(trace_)) {
    // No head assigns any probability to a token of the context: all count equally.
    result_.answer_error_mean = mean_where(
        [&](std::int64_t position) { return marks->predicts[static_cast<std::size_t>(position)]; },
        steps);
  }
}

void ReplaySummary::add_standard_errors() {
  if (!trace_.samples_layers() && !trace_.samples_heads() && sample_.is_all()) return;
  const double layers = static_cast<double>(trace_.n_layers) / trace_.model_layers();
  const double heads = static_cast<double>(trace_.n_kv_heads) / trace_.model_kv_heads();
  const std::span<const std::int32_t> strata = trace_.layers_by_stratum;
  ReplayStderr out{.rel_error_mean = error_means_.standard_error(layers, heads, strata),
                   .cosine_mean = cosine_means_.standard_error(layers, heads, strata),
                   .retained_mass_mean = {},
                   .best_mass_mean = {},
                   .answer_error_mean = {}};
  if (method_.has_retained_mass()) {
    out.retained_mass_mean = mass_means_.standard_error(layers, heads, strata);
    out.best_mass_mean = best_mass_means_.standard_error(layers, heads, strata);
  }
  if (retrieved_ > 0) {
    const bool all = !trace_.samples_layers() && !trace_.samples_heads();
    out.answer_error_mean =
        all ? std::optional{0.0} : answer_errors_.standard_error(layers, heads, strata);
  }
  const char* lone = out.rel_error_mean     ? "run of decode steps"
                     : trace_.n_layers == 1 ? "layer"
                                            : "KV head of each layer";
  if (!sample_.is_all()) add_step_errors(out);
  if (samples_ > 0 && std::isfinite(result_.rel_error_mean)) {
    if (!out.rel_error_mean) {
      note(fmt::format("its means have no standard error: one {} has no spread", lone));
    } else if (retrieved_ > 0 && !out.answer_error_mean) {
      note(
          "answer_error_mean has no standard error: one layer, head or run of steps of the sample "
          "has all retrieved tokens");
    }
  }
  result_.standard_errors = out;
}

/// Steps are drawn for all layers and heads together, so their variance is added to that of these.
void ReplaySummary::add_step_errors(ReplayStderr& errors) const {
  const auto add_to = [&](std::optional<double>& error, std::span<const double> values,
                          std::span<const double> weights) {
    const auto of_steps = sample_.standard_error(values, weights);
    error = error && of_steps ? std::optional{std::hypot(*error, *of_steps)} : std::nullopt;
  };
  const std::vector<double> equal(static_cast<std::size_t>(sample_.size()), 1.0);
  const auto add_mean = [&](std::optional<double>& error, auto value) {
    std::vector<double> values;
    for (const ReplayStep& step : steps_) {
      if (sample_.measures(step.step - 1)) values.push_back(value(step));
    }
    add_to(error, values, equal);
  };
  add_mean(errors.rel_error_mean, [](const ReplayStep& step) { return step.rel_error; });
  add_mean(errors.cosine_mean, [](const ReplayStep& step) { return step.cosine; });
  if (method_.has_retained_mass()) {
    add_mean(errors.retained_mass_mean,
             [](const ReplayStep& step) { return step.retained_mass.value_or(0); });
    std::vector<double> masses = step_best_masses_;
    for (double& mass : masses) mass /= static_cast<double>(trace_.n_layers) * trace_.n_heads;
    add_to(errors.best_mass_mean, masses, equal);
  }
  if (retrieved_ > 0) add_to(errors.answer_error_mean, step_answer_errors_, step_answers_);
}

ReplayMethod ReplaySummary::finish() {
  const std::int64_t heads = static_cast<std::int64_t>(trace_.n_layers) * trace_.n_kv_heads;
  const Dtype stored = method_.store_dtype(trace_.dtype);
  result_.bytes_full_final =
      bytes_of(2 * trace_.tokens * trace_.head_dim, trace_.dtype).count() * heads;
  const std::int64_t full_prompt =
      bytes_of(2 * trace_.prompt_tokens * trace_.head_dim, trace_.dtype).count() * heads;
  result_.budget_reached =
      static_cast<double>(kv_bytes_after_prefill_) / static_cast<double>(full_prompt);
  if (!method_.parts().select->compresses_prompt() && method_.parts().select->bounded()) {
    note("the prompt stays whole until the first decode step, and budget_reached is of its end");
  }

  if (why_entries_ > kMaxWhy) {
    result_.why.clear();
    note(fmt::format("its entries are counted by reason, not listed: more than {}", kMaxWhy));
  }

  std::int64_t closed = 0;
  bool has_closed_form = true;
  for (std::int32_t layer = 0; layer < trace_.n_layers; ++layer) {
    const auto bytes = layer_cache_bytes(
        method_, trace_.number_of(layer),
        {.n_heads = trace_.n_heads, .n_kv_heads = trace_.n_kv_heads, .head_dim = trace_.head_dim},
        trace_.dtype, trace_.prompt_tokens, trace_.tokens);
    has_closed_form = has_closed_form && bytes.has_value();
    if (bytes) closed += bytes->count();
  }
  if (has_closed_form) {
    result_.closed_form_bytes_final = closed;
  } else {
    law_.trace = trace_.name;
    result_.measured_law = std::move(law_);
  }

  const double share = samples_ > 0 ? 1.0 / static_cast<double>(samples_) : kNone;
  result_.rel_error_mean = error_sum_ * share;
  result_.cosine_mean = cosine_sum_ * share;
  if (samples_ > 0 && !std::isfinite(result_.rel_error_mean)) {
    note("its errors are not numbers: rows of its store exceed the range of their format");
  }
  if (method_.has_retained_mass()) {
    result_.retained_mass_mean = mass_sum_ * share;
    result_.best_mass_mean = best_mass_sum_ * share;
  }
  result_.rel_error_p99 = percentile(std::move(errors_), 0.99);
  const double per_step = 1.0 / (static_cast<double>(trace_.n_layers) * trace_.n_heads);
  double attended = 0;
  double read = 0;
  for (ReplayStep& step : steps_) {
    attended += static_cast<double>(step.entries_attended);
    read += step.entries_read;
    result_.bytes_full_read_total += static_cast<double>(
        bytes_of(2 * step.tokens * trace_.head_dim, trace_.dtype).count() * heads);
    result_.bytes_read_total += step.bytes_read;
    result_.bytes_written_total += step.bytes_written;
    result_.extra_flops_total += step.extra_flops;
    result_.link_bytes_total += step.link_bytes;
    scale_means(step, per_step);
  }
  if (trip_.rows > 0) {
    const auto ratio = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
    result_.tier = {.page_bytes = std::llround(trip_.page_bytes),
                    .link_bytes = std::llround(trip_.link_bytes),
                    .key_error = ratio(trip_.key_error, trip_.key_square),
                    .value_error = ratio(trip_.value_error, trip_.value_square)};
    const auto text = [](double error) {
      return std::isfinite(error) ? fmt::format("{:.3g}", error) : std::string{"not a number"};
    };
    note(
        fmt::format("{} of the prompt were moved to the tier and read back as {} ({:.3g} to 1); "
                    "squared error of the keys that returned {}, of the values {}",
                    Bytes{result_.tier->page_bytes}, Bytes{result_.tier->link_bytes},
                    ratio(trip_.page_bytes, trip_.link_bytes), text(result_.tier->key_error),
                    text(result_.tier->value_error)));
  }
  if (prompt_outcome_.rows > 0) {
    const PrefillOutcome& all = prompt_outcome_;
    const auto rows = static_cast<double>(all.rows);
    result_.prefill = {.pairs_share = all.pairs / all.causal_pairs,
                       .flops_share = all.flops / all.full_flops,
                       .rel_error_mean = all.error / rows,
                       .retained_mass_mean = all.mass / rows};
    note(
        fmt::format("the prompt's attention computes {:.3g} of the causal pairs, with {:.3g} of "
                    "the FLOPs; error of the prompt's outputs {:.3g}, mass retained {:.4g}",
                    result_.prefill->pairs_share, result_.prefill->flops_share,
                    result_.prefill->rel_error_mean, result_.prefill->retained_mass_mean));
  }
  add_segments();
  add_standard_errors();
  if (attended > 0) result_.entries_read_share = read / attended;
  if (options_.per_step) result_.series = std::move(steps_);
  result_.paged = paged_.reports(options_.block_sizes);
  if (const auto own = own_method_note(method_.name())) result_.notes.push_back(*own);
  if (method_.parts().read && !method_.parts().select->bounded()) {
    result_.notes.push_back(
        fmt::format("its budget limits the entries read per step; it keeps every token{}",
                    result_.host_bytes_final > 0 ? ", part of it in host memory" : ""));
  }
  if (stored != trace_.dtype) {
    result_.notes.push_back(
        fmt::format("stored in {}, recorded in {}", name_of(stored), name_of(trace_.dtype)));
  }
  return std::move(result_);
}

}  // namespace kvsim
