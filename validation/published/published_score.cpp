#include "validation/published/published_score.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "models/cost/kernels/spread.hpp"
#include "models/llm/llm.hpp"
#include "models/units/dtype.hpp"
#include "sim/batch/account/time_residual.hpp"
#include "validation/published/published_stacks.hpp"

namespace kvsim {
namespace {

std::optional<double> mean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

/// Returns the document of a row without the location in it: "github OWNER/NAME", or the text
/// before a table, figure or section.
std::string document_of(const std::string& source) {
  if (source.starts_with("github ")) {
    const auto end = source.find(' ', 7);
    return source.substr(0, end);
  }
  std::size_t end = source.size();
  for (const char* place : {" Table", " Fig", " Section", " section", " Abstract", " Appendix"}) {
    end = std::min(end, source.find(place));
  }
  return source.substr(0, end);
}

/// Whether the run holds 1 GiB of cache or more.
bool is_large(const PublishedSetup& setup) {
  if (setup.llms.empty() || !setup.prompt) return false;
  const std::int64_t tokens = setup.prompt->tokens + (setup.output ? setup.output->tokens : 0);
  const Dtype dtype = setup.kv_dtype.value_or(Dtype::kFp16);
  const double one =
      static_cast<double>(full_cache_bytes(*setup.llms.front(), tokens, dtype).count());
  const double sequences = setup.batch ? static_cast<double>(setup.batch->sequences) : 1.0;
  return one * sequences >= 1024.0 * 1024.0 * 1024.0;
}

/// Whether the figure is the memory that an engine reserves for its cache at its start.
bool is_pool(const ScoredRow& row, const PublishedSetup& setup) {
  const bool engine = setup.stack != nullptr && setup.stack->growth == CacheGrowth::kPaged;
  return engine && row.kind == PublishedKind::kCacheSize &&
         (row.row.metric == "kv_capacity_tokens" || setup.memory_fraction);
}

PublishedGroup summed(const std::vector<const ScoredRow*>& rows) {
  PublishedGroup out;
  std::vector<double> errors, absolute, large, held_out;
  for (const ScoredRow* row : rows) {
    ++out.n_total;
    const PublishedPrediction& prediction = row->prediction;
    if (!prediction.expressed()) {
      ++out.reasons[prediction.reason];
      continue;
    }
    ++out.n_expressed;
    if (row->kind == PublishedKind::kOom) {
      ++out.oom_total;
      const bool published = row->value && *row->value >= 0.5;
      if (prediction.runs_out == published) ++out.oom_right;
      continue;
    }
    if (!prediction.value) ++out.oom_total;  // it ran, but was predicted to be OOM
    const auto error = row->error();
    if (!error) continue;
    errors.push_back(*error);
    absolute.push_back(std::abs(*error));
    if (row->large) large.push_back(std::abs(*error));
    if (!row->fitted) held_out.push_back(std::abs(*error));
  }
  out.n = absolute.size();
  out.mape = mean(absolute);
  out.bias = mean(errors);
  if (!absolute.empty()) {
    out.median_ape = quantile_of(absolute, 0.5);
    out.p90_ape = quantile_of(absolute, 0.9);
  }
  out.n_large = large.size();
  out.mape_large = mean(large);
  out.n_held_out = held_out.size();
  out.mape_held_out = mean(held_out);
  if (!held_out.empty()) out.median_ape_held_out = quantile_of(held_out, 0.5);
  return out;
}

/// log_error of rows, by document.
using Errors = std::map<std::string, std::vector<double>>;

bool is_rate(const ScoredRow& row) {
  const std::string& metric = row.row.metric;
  return has_text(metric, "throughput") || has_text(metric, "bandwidth") ||
         has_text(metric, "tflops");
}

/// Returns errors of one document at a fixed number of quantiles, so that documents have equal
/// weights regardless of their number of rows.
std::vector<double> as_one(const std::vector<double>& errors) {
  constexpr std::size_t kPoints = 20;
  std::vector<double> out;
  for (std::size_t i = 0; i < kPoints; ++i) {
    out.push_back(quantile_of(errors, (static_cast<double>(i) + 0.5) / kPoints));
  }
  return out;
}

std::optional<std::pair<double, double>> spread_elsewhere(const Errors& errors,
                                                          const std::string& document) {
  constexpr std::size_t kMinDocuments = 3;  // errors of rows of one document are correlated
  constexpr double kEnd = 0.9;              // on either side of an 80 % interval
  Clusters others, negative;
  for (const auto& [name, values] : errors) {
    if (name == document) continue;
    others.push_back(as_one(values));
    negative.push_back(others.back());
    for (double& value : negative.back()) value = -value;
  }
  if (others.size() < kMinDocuments) return std::nullopt;
  return std::pair{-upper_limit(negative, kEnd), upper_limit(others, kEnd)};
}

void set_intervals(std::vector<ScoredRow>& rows) {
  std::map<std::pair<PublishedKind, std::string>, Errors> by_stack;
  std::map<PublishedKind, Errors> by_kind;
  for (const ScoredRow& row : rows) {
    const auto error = row.log_error();
    if (!error || row.inconsistent) continue;
    by_stack[{*row.kind, row.stack}][row.document].push_back(*error);
    by_kind[*row.kind][row.document].push_back(*error);
  }
  for (ScoredRow& row : rows) {
    if (!row.prediction.value || !row.kind || *row.kind == PublishedKind::kOom) continue;
    auto spread = spread_elsewhere(by_stack[{*row.kind, row.stack}], row.document);
    if (!spread) spread = spread_elsewhere(by_kind[*row.kind], row.document);
    if (!spread) continue;
    const double value = *row.prediction.value;
    const double sign = is_rate(row) ? -1 : 1;
    const double one = value * std::exp(sign * spread->first);
    const double other = value * std::exp(sign * spread->second);
    row.interval = std::pair{std::min(one, other), std::max(one, other)};
  }
}

}  // namespace

std::optional<double> ScoredRow::error() const {
  if (kind == PublishedKind::kOom || !value || !prediction.value || *value == 0)
    return std::nullopt;
  return (*prediction.value - *value) / std::abs(*value);
}

std::optional<double> ScoredRow::log_error() const {
  if (!error() || *prediction.value <= 0 || *value <= 0) return std::nullopt;
  return std::log(*value / *prediction.value) * (is_rate(*this) ? -1 : 1);
}

PublishedScore score_published(std::vector<PublishedRow> rows,
                               const std::function<void(double)>& done) {
  PublishedScore score;
  std::map<std::string, DocumentContext> documents;
  for (const PublishedRow& row : rows) {
    DocumentContext& document = documents[document_of(row.source)];
    document.binary = document.binary || has_text(row.unit, "gib");
    if (document.version.empty() && names_version(row.note)) document.version = row.note;
    document.starts[start_of(row)].add(row);
    if (row.method_params.starts_with("as the ")) {
      // The base row of a variant: the same model, in a source with the same prefix.
      for (const PublishedRow& base : rows) {
        if (base.method_params.starts_with("as the ") || base.model != row.model) continue;
        if (!row.source.starts_with(base.source)) continue;
        document.starts[start_of(base)].add(base);
        document.bases.emplace(start_of(row), base);
      }
    }
  }
  for (PublishedRow& row : rows) {
    const PublishedSetup setup = read_setup(row, documents.at(document_of(row.source)));
    ScoredRow scored;
    scored.gpu = setup.gpu != nullptr ? setup.gpu->name : row.gpu;
    if (scored.gpu.empty()) scored.gpu = "not stated";
    scored.stack = setup.stack != nullptr ? setup.stack->name : row.framework;
    if (scored.stack.empty()) scored.stack = "none";
    scored.dtype = without_brackets(row.dtype);
    if (const auto* rule = find_metric_rule(row.metric)) scored.kind = rule->kind;
    scored.value = setup.value;
    scored.document = document_of(row.source);
    if (setup.stack != nullptr && setup.method) {
      scored.residual_path =
          static_residual_path(*setup.stack, setup.method->name,
                               setup.kv_dtype && bits_of(*setup.kv_dtype) < bits_of(Dtype::kFp16));
    }
    scored.prediction = predict_published(row, setup);
    scored.in_scope = setup.in_scope;
    scored.out_of_scope = setup.out_of_scope;
    scored.fitted = setup.fitted;
    scored.inconsistent = setup.inconsistent;
    scored.large = is_large(setup);
    scored.row = std::move(row);
    scored.pool = is_pool(scored, setup);
    if (scored.pool) scored.unstated = setup.unstated;
    if (scored.in_scope) {
      ++score.n_in_scope;
      if (scored.prediction.expressed()) ++score.n_in_scope_expressed;
    } else {
      ++score.out_of_scope[scored.out_of_scope];
    }
    score.rows.push_back(std::move(scored));
    if (done) done(static_cast<double>(score.rows.size()) / static_cast<double>(rows.size()));
  }
  set_intervals(score.rows);

  using Key = std::tuple<bool, std::string, std::string, std::string, std::string>;
  std::map<Key, std::vector<const ScoredRow*>> groups;
  for (const ScoredRow& row : score.rows) {
    groups[{row.inconsistent, row.row.metric, row.gpu, row.stack, row.dtype}].push_back(&row);
  }
  for (const auto& [key, members] : groups) {
    PublishedGroup group = summed(members);
    std::tie(group.inconsistent, group.metric, group.gpu, group.stack, group.dtype) = key;
    score.groups.push_back(std::move(group));
  }
  // Rows with an inconsistent source are pooled separately.
  const auto pool = [&](const std::string& name, bool inconsistent, const auto& belongs) {
    std::vector<const ScoredRow*> members;
    for (const ScoredRow& row : score.rows) {
      if (row.inconsistent == inconsistent && belongs(row)) members.push_back(&row);
    }
    if (members.empty()) return;
    PublishedGroup group = summed(members);
    group.inconsistent = inconsistent;
    group.metric = name;
    group.gpu = group.stack = group.dtype = "all";
    score.pooled.push_back(std::move(group));
  };
  std::set<std::string> metrics;
  std::set<PublishedKind> kinds;
  for (const ScoredRow& row : score.rows) {
    metrics.insert(row.row.metric);
    if (row.kind) kinds.insert(*row.kind);
  }
  for (const std::string& metric : metrics) {
    pool(metric, false, [&](const ScoredRow& row) { return row.row.metric == metric; });
  }
  for (const PublishedKind kind : kinds) {
    pool(fmt::format("all {}", name_of(kind)), false,
         [&](const ScoredRow& row) { return row.kind == kind; });
  }
  pool("pool of a start, all stated", false,
       [](const ScoredRow& row) { return row.pool && row.unstated.empty(); });
  pool("pool of a start, not all", false,
       [](const ScoredRow& row) { return row.pool && !row.unstated.empty(); });
  for (const PublishedKind kind : {PublishedKind::kTime, PublishedKind::kKernel}) {
    std::map<std::string, std::vector<const ScoredRow*>> by_stack;
    for (const ScoredRow& row : score.rows) {
      if (row.kind == kind && row.error() && !row.inconsistent) by_stack[row.stack].push_back(&row);
    }
    for (const auto& [stack, members] : by_stack) {
      PublishedGroup group = summed(members);
      group.metric = name_of(kind);
      group.stack = stack;
      group.gpu = group.dtype = "all";
      score.stacks.push_back(std::move(group));
    }
  }
  pool("all", false, [](const ScoredRow&) { return true; });
  pool("all", true, [](const ScoredRow&) { return true; });
  return score;
}

}  // namespace kvsim
