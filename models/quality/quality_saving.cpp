#include "models/quality/quality_saving.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/names.hpp"
#include "models/units/number_text.hpp"

namespace kvsim {
namespace {

constexpr double kZ90 = 1.6448536269514722;  // 95th percentile of the standard normal distribution
constexpr double kSameBytes = 1e-9;

bool selects(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

std::string protocol_name(const QualityRow& row) {
  return row.when.empty() ? "not stated" : row.when;
}

/// Describes the setting: "0.5 of the entries", "4 bits".
std::string setting_name(const QualityRow& row) {
  std::string text;
  if (row.budget && !(row.budget_unit == "fraction" && *row.budget == 1.0)) {
    text = row.budget_unit == "fraction"
               ? fmt::format("{:g} of the entries", *row.budget)
               : fmt::format("{:g} {}", *row.budget,
                             row.budget_unit == "fraction of bytes" ? "of the bytes" : "tokens");
  }
  if (row.bits && *row.bits < 16.0) {
    text += fmt::format("{}{:g} bits", text.empty() ? "" : ", ", *row.bits);
  }
  return text.empty() ? row.setting : text;
}

/// Sums over tasks; the error is from the rows' own errors or from the differences between tasks.
struct TaskSums {
  double score = 0.0, full = 0.0;  // retained times full, so that perplexities are weighted equally
  double variance = 0.0;           // of `score`
  bool all_errors = true;
  std::vector<std::pair<double, double>> tasks{};
  std::vector<std::string> contexts{};
  const QualityRow* first = nullptr;

  void add(const QualityRow& row, double retained) {
    if (first == nullptr) first = &row;
    const double weight = *row.score_full;
    score += retained * weight;
    full += weight;
    tasks.emplace_back(retained * weight, weight);
    const auto error = row.retained_stderr();
    all_errors = all_errors && error;
    variance += std::pow(error.value_or(0.0) * weight, 2);
    if (!row.context.empty()) contexts.push_back(row.context);
  }

  [[nodiscard]] SavingPoint point(double kept) const {
    SavingPoint out{.kept = kept,
                    .retained = score / full,
                    .harness = first->harness(),
                    .model = first->model,
                    .setting = setting_name(*first),
                    .contexts = contexts,
                    .rows = tasks.size()};
    double error = 0.0;
    if (all_errors) {
      error = std::sqrt(variance) / full;
      out.has_interval = true;
    } else if (tasks.size() >= 2) {
      // The error of a ratio of sums over sampled tasks.
      double squares = 0.0;
      for (const auto& [s, f] : tasks) squares += std::pow(s - out.retained * f, 2);
      const auto n = static_cast<double>(tasks.size());
      error = std::sqrt(squares * n / (n - 1.0)) / full;
      out.has_interval = true;
    }
    out.low = out.retained - kZ90 * error;
    out.high = out.retained + kZ90 * error;
    return out;
  }
};

std::optional<double> context_tokens(const std::string& text) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [at, error] = number_from_chars(text.data(), end, value);
  if (error != std::errc{} || at != end) return std::nullopt;
  return value;
}

void choose(MethodSaving& saving, double max_loss) {
  const double bound = 1.0 - max_loss;
  for (std::size_t i = 0; i < saving.points.size();) {
    std::size_t end = i;
    bool certain = true;
    bool possible = false;
    for (; end < saving.points.size() &&
           std::abs(saving.points[end].kept - saving.points[i].kept) <= kSameBytes;
         ++end) {
      const SavingPoint& point = saving.points[end];
      certain = certain && point.has_interval && point.low >= bound;
      possible = possible || point.high >= bound;
    }
    const double saved = 1.0 - saving.points[i].kept;
    if (certain) saving.certain = std::max(saved, saving.certain.value_or(saved));
    if (possible) saving.possible = std::max(saved, saving.possible.value_or(saved));
    i = end;
  }
}

void find_nearest(MethodSaving& saving, const std::optional<double>& wanted) {
  if (!wanted) return;
  for (const std::string& text : saving.contexts) {
    const auto tokens = context_tokens(text);
    if (!tokens || *tokens <= 0.0) continue;
    const auto distance = [&](double x) { return std::abs(std::log(x / *wanted)); };
    if (!saving.nearest_context || distance(*tokens) < distance(*saving.nearest_context)) {
      saving.nearest_context = tokens;
    }
  }
}

}  // namespace

std::string source_names(const std::set<std::string>& harnesses) {
  std::vector<std::string_view> names;
  for (const std::string& harness : harnesses) {
    names.push_back(harness.empty() ? "a source without a name" : std::string_view{harness});
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<MethodSaving> largest_savings(std::span<const QualityRow> rows,
                                          const QualityModel& model, const SavingQuery& query) {
  struct Collected {
    MethodSaving saving;
    // By kept bytes, descending, then harness and model.
    std::map<std::tuple<double, std::string, std::string>, TaskSums> sums{};
    std::vector<const QualityRow*> others{};  // of other models
  };
  std::map<std::pair<std::string, std::string>, Collected> found;
  for (const QualityRow& row : rows) {
    const auto retained = row.retained();
    if (!retained || row.is_full() || !selects(query.methods, row.method)) continue;
    if (!row.task.starts_with(query.task)) continue;
    // A prefill with less computation still stores the whole cache.
    if (quality_kind(row) == QualityKind::kCompute) continue;
    Collected& one = found[{row.method, protocol_name(row)}];
    one.saving.method = row.method;
    one.saving.protocol = protocol_name(row);
    if (!selects(query.models, folded_name(row.model))) {
      one.others.push_back(&row);
      continue;
    }
    const auto kept = row.kept_bytes();
    ++one.saving.rows;
    one.saving.models.insert(row.model);
    one.saving.harnesses.insert(row.harness());
    if (!row.context.empty()) one.saving.contexts.insert(row.context);
    if (!kept) {
      ++one.saving.unsized_rows;
      continue;
    }
    one.sums[{-*kept, row.harness(), row.model}].add(row, *retained);
  }
  std::vector<MethodSaving> out;
  for (auto& [key, one] : found) {
    MethodSaving& saving = one.saving;
    for (const auto& [place, sums] : one.sums) {
      if (sums.full > 0.0) saving.points.push_back(sums.point(-std::get<0>(place)));
    }
    if (saving.rows == 0) {
      // Not measured with this model: predicted from measurements of others.
      saving.basis = SavingBasis::kPredicted;
      struct Predicted {
        double retained = 0.0, low = 0.0, high = 0.0, weight = 0.0;
        SavingPoint point{};
      };
      std::map<double, Predicted> settings;
      for (const QualityRow* row : one.others) {
        const auto kept = row->kept_bytes();
        if (!kept) {
          ++saving.unsized_rows;
          continue;
        }
        QualityRow requested = *row;
        requested.model = query.models.front();
        const auto p = model.predict(requested);
        if (!p || !p->low) continue;
        Predicted& sum = settings[-*kept];
        const double weight = *row->score_full;
        sum.retained += p->retained * weight;
        sum.low += *p->low * weight;
        sum.high += *p->high * weight;
        sum.weight += weight;
        sum.point.setting = setting_name(*row);
        ++sum.point.rows;
        saving.models.insert(row->model);
        saving.harnesses.insert(row->harness());
        if (!row->context.empty()) saving.contexts.insert(row->context);
      }
      for (auto& [kept, sum] : settings) {
        if (sum.weight <= 0.0) continue;
        SavingPoint point = sum.point;
        point.kept = -kept;
        point.retained = sum.retained / sum.weight;
        point.low = sum.low / sum.weight;
        point.high = sum.high / sum.weight;
        point.has_interval = true;
        point.model = query.models.front();
        saving.rows += point.rows;
        saving.points.push_back(std::move(point));
      }
    }
    if (saving.rows == 0 && saving.unsized_rows == 0) continue;
    choose(saving, query.max_loss);
    find_nearest(saving, query.context);
    out.push_back(std::move(saving));
  }
  std::stable_sort(out.begin(), out.end(), [](const MethodSaving& a, const MethodSaving& b) {
    const auto rank = [](const MethodSaving& one) {
      return std::tuple{one.basis == SavingBasis::kMeasured, one.certain.value_or(-1.0),
                        one.possible.value_or(-1.0)};
    };
    return rank(a) > rank(b);
  });
  return out;
}

}  // namespace kvsim
