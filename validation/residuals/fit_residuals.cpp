#include "validation/residuals/fit_residuals.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kTail = 0.05;
constexpr double kFullDocument = 20;                     // rows that count as one document
constexpr std::array kUpperWeights{0.5, 1.0, 2.0, 4.0};  // documents
constexpr std::array kFloors{0.1, 0.3, 1.0};
constexpr std::array kStretches{0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0};
constexpr double kCoverage = 0.9;
constexpr double kShort = 0.005;       // allowed shortfall of coverage over all classes, since some
                                       // classes never reach it
constexpr double kMinGain = 0.01;      // of the width, for adding a class
constexpr double kMinDocuments = 1.5;  // per class, each with kFullDocument rows
constexpr std::size_t kMaxClasses = 12;
constexpr std::size_t kMaxWords = 3;  // per class

/// Weight of a document with `rows` rows.
double weight_of(double rows) {
  const double share = rows / kFullDocument;
  return share <= 1 ? share : std::sqrt(share);
}

/// Rows per document. A document with few rows counts partially, and each document counts at most
/// once.
using Rows = std::map<std::string_view, double>;  // per document
double full_documents(const Rows& rows) {
  double out = 0;
  for (const auto& [document, n] : rows) out += std::min(1.0, n / kFullDocument);
  return out;
}

using Path = std::vector<std::string>;

/// Choices per metric.
struct Choice {
  std::vector<Path> classes{{}};
  double floor = 1;
  double upper = 1;                  // weight of the parent class in documents
  std::vector<double> stretches{1};  // per class: factor of quantiles' distances from the median
};

/// The rows of one metric at one floor, sorted by error.
class Errors {
 public:
  Errors(const std::vector<ResidualRow>& rows, const std::vector<std::size_t>& of, double floor,
         const std::vector<Path>& classes) {
    for (const std::size_t i : of) {
      rows_.push_back({.row = &rows[i],
                       .index = i,
                       .error = rows[i].response.error(rows[i].log_ratio, floor),
                       .classes = {}});
    }
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const One& a, const One& b) { return a.error < b.error; });
    std::map<std::string_view, std::size_t> numbers;
    for (One& one : rows_) {
      one.document = numbers.try_emplace(one.row->document, numbers.size()).first->second;
      one.classes = class_chain(classes, one.row->features);
      one.apart = !one.row->apart.empty();
    }
    documents_ = numbers.size();
  }

  struct One {
    const ResidualRow* row = nullptr;
    std::size_t index = 0;  // of all rows
    double error = 0;
    std::size_t document = 0;
    std::vector<std::size_t> classes;  // from the class of all rows to the most specific
    bool apart = false;                // not in the class of all rows
  };
  [[nodiscard]] const std::vector<One>& rows() const { return rows_; }
  [[nodiscard]] std::size_t documents() const { return documents_; }

  /// Weights of the rows for a run of these classes, which sum to 1; without document `left_out`.
  /// nullopt if no row is left.
  [[nodiscard]] std::optional<std::vector<double>> weights(
      const std::vector<std::size_t>& classes, double upper,
      std::optional<std::size_t> left_out) const {
    std::optional<std::vector<double>> out;
    for (std::size_t depth = 0; depth < classes.size(); ++depth) {
      std::vector<double> counts(documents_);
      const auto belongs = [&](const One& one) {
        return one.document != left_out && one.classes.size() > depth &&
               one.classes[depth] == classes[depth] && (depth > 0 || !one.apart);
      };
      for (const One& one : rows_) counts[one.document] += belongs(one) ? 1 : 0;
      double total = 0;
      for (const double n : counts) total += weight_of(n);
      if (total <= 0) return out;  // more specific classes have no other document either
      const double above = out ? upper : 0;
      if (!out) out.emplace(rows_.size());
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        double& weight = (*out)[i];
        weight *= above / (total + above);
        if (!belongs(rows_[i])) continue;
        const double n = counts[rows_[i].document];
        weight += weight_of(n) / n / (total + above);
      }
    }
    return out;
  }

  /// Each row's error is at the middle of its weight; linear interpolation in between.
  [[nodiscard]] double quantile(const std::vector<double>& weights, double share) const {
    double before = 0;
    double previous_at = 0;
    std::optional<double> previous;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (weights[i] <= 0) continue;
      const double at = before + weights[i] / 2;
      if (at >= share) {
        if (!previous) return rows_[i].error;
        const double part = (share - previous_at) / (at - previous_at);
        return *previous + part * (rows_[i].error - *previous);
      }
      before += weights[i];
      previous_at = at;
      previous = rows_[i].error;
    }
    return previous.value_or(0);
  }

 private:
  std::vector<One> rows_;
  std::size_t documents_ = 0;
};

/// Spread of a service's errors at several loads around their median: the standard deviation of a
/// normal distribution with the same 90 % quantile of distances.
double spread_within_services(const Errors& errors) {
  std::map<std::pair<std::size_t, std::string_view>, std::vector<double>> services;
  for (const Errors::One& one : errors.rows()) {
    if (!one.row->service.empty()) {
      services[{one.document, one.row->service}].push_back(one.error);  // ascending
    }
  }
  std::vector<double> counts(errors.documents());
  constexpr std::size_t kMin = 3;
  for (const auto& [key, of] : services) {
    if (of.size() >= kMin) counts[key.first] += static_cast<double>(of.size());
  }
  struct Distance {
    double value, weight;
  };
  std::vector<Distance> distances;
  double all = 0;
  for (const auto& [key, of] : services) {
    if (of.size() < kMin) continue;
    const auto n = static_cast<double>(of.size());
    const double unbiased = std::sqrt(n / (n - 1));
    const double weight = weight_of(counts[key.first]) / counts[key.first];
    for (const double error : of) {
      distances.push_back({unbiased * std::abs(error - of[of.size() / 2]), weight});
      all += weight;
    }
  }
  std::sort(distances.begin(), distances.end(),
            [](const Distance& a, const Distance& b) { return a.value < b.value; });
  constexpr double kShare = 0.9, kDeviate = 1.6448536269514722;
  double before = 0;
  for (const Distance& distance : distances) {
    before += distance.weight;
    if (before >= kShare * all) return distance.value / kDeviate;
  }
  return 0;
}

double stretched(double quantile, double median, double stretch) {
  return median + stretch * (quantile - median);
}

/// The 5 %, 50 % and 95 % quantiles for one document's rows of one class from all others.
struct Group {
  std::vector<std::size_t> members;  // of Errors::rows
  std::size_t number = 0;            // index of its most specific class
  double low = 0, median = 0, high = 0;
};

std::vector<Group> left_out_groups(const Errors& errors, double upper) {
  std::map<std::pair<std::size_t, std::vector<std::size_t>>, Group> groups;
  for (std::size_t i = 0; i < errors.rows().size(); ++i) {
    const Errors::One& one = errors.rows()[i];
    groups[{one.document, one.classes}].members.push_back(i);
  }
  std::vector<Group> out;
  for (auto& [key, group] : groups) {
    const auto weights = errors.weights(key.second, upper, key.first);
    if (!weights) continue;
    group.number = key.second.back();
    group.low = errors.quantile(*weights, kTail);
    group.median = errors.quantile(*weights, 0.5);
    group.high = errors.quantile(*weights, 1 - kTail);
    out.push_back(std::move(group));
  }
  return out;
}

/// Lowest and highest error; the interval contains the prediction.
std::pair<double, double> error_ends(const Group& group, double stretch) {
  return {std::min(0.0, stretched(group.low, group.median, stretch)),
          std::max(0.0, stretched(group.high, group.median, stretch))};
}

LeftOutEnds ends_of(const Group& group, double stretch, double floor, const Response& response) {
  const auto [low, high] = error_ends(group, stretch);
  return {.low = response.change(low, floor), .high = response.change(high, floor)};
}

/// Weighted means over documents of the left-out intervals of the counted groups.
struct LeftOutMeans {
  double coverage = 0;
  double width = 0;  // in errors, because near saturation values change much more than errors
};
template <class Counts>
LeftOutMeans means_of(const Errors& errors, const std::vector<Group>& groups,
                      const std::vector<double>& stretches, double floor, Counts&& is_counted) {
  std::vector<LeftOutMeans> sums(errors.documents());
  std::vector<double> counts(errors.documents());
  for (const Group& group : groups) {
    if (!is_counted(group)) continue;
    for (const std::size_t i : group.members) {
      const Errors::One& one = errors.rows()[i];
      const double stretch = stretches[group.number];
      const LeftOutEnds ends = ends_of(group, stretch, floor, one.row->response);
      const auto [min, max] = error_ends(group, stretch);
      sums[one.document].coverage += ends.covers(one.row->log_ratio) ? 1 : 0;
      sums[one.document].width += max - min;
      counts[one.document] += 1;
    }
  }
  LeftOutMeans out;
  double all = 0;
  for (std::size_t d = 0; d < counts.size(); ++d) {
    if (counts[d] == 0) continue;
    const double weight = weight_of(counts[d]);
    out.coverage += weight * sums[d].coverage / counts[d];
    out.width += weight * sums[d].width / counts[d];
    all += weight;
  }
  if (all > 0) out = {.coverage = out.coverage / all, .width = out.width / all};
  return out;
}

ResidualClass make_class(const std::string& metric, const Errors& errors, std::size_t number,
                         const Choice& choice, double within,
                         const std::vector<LeftOutEnds>& ends) {
  ResidualClass c{.metric = metric,
                  .path = choice.classes[number],
                  .quantiles = {},
                  .floor = choice.floor,
                  .within = within};
  const auto weights =
      errors.weights(class_chain(choice.classes, c.path), choice.upper, std::nullopt);
  const double median = errors.quantile(*weights, 0.5);
  for (std::size_t i = 0; i < kResidualShares.size(); ++i) {
    c.quantiles[i] =
        stretched(errors.quantile(*weights, kResidualShares[i]), median, choice.stretches[number]);
  }
  struct Sum {
    double n = 0, inside = 0, score = 0;
  };
  std::map<std::string_view, Sum> documents;
  for (const Errors::One& one : errors.rows()) {
    if (std::find(one.classes.begin(), one.classes.end(), number) == one.classes.end()) continue;
    Sum& sum = documents[one.row->document];
    const LeftOutEnds& interval = ends[one.index];
    sum.n += 1;
    sum.inside += interval.covers(one.row->log_ratio) ? 1 : 0;
    sum.score += interval.score(one.row->log_ratio);
    ++c.rows;
  }
  c.documents = std::ssize(documents);
  double all = 0;
  for (const auto& [name, sum] : documents) {
    const double weight = weight_of(sum.n);
    c.coverage += weight * sum.inside / sum.n;
    c.interval_score += weight * sum.score / sum.n;
    all += weight;
  }
  c.coverage /= all;
  c.interval_score /= all;
  return c;
}

struct Scored {
  Choice choice;
  double width = 0;     // mean over documents of left-out intervals' widths,
  double coverage = 0;  // and of their coverage

  /// `gain`: required relative reduction of the width.
  [[nodiscard]] bool is_better(const Scored& other, double gain = 0) const {
    const bool covers = coverage >= kCoverage - kShort;
    const bool other_covers = other.coverage >= kCoverage - kShort;
    if (covers != other_covers) return covers;
    return covers ? width < (1 - gain) * other.width : coverage > other.coverage;
  }
};

/// Returns for each class the smallest stretch that covers enough of the rows without a narrower
/// class, or the largest stretch if none does.
std::vector<double> stretches_of(const Errors& errors, const std::vector<Group>& groups,
                                 std::size_t classes, double floor) {
  std::vector<double> out(classes, 1);
  for (std::size_t number = 0; number < classes; ++number) {
    const auto is_own = [&](const Group& group) { return group.number == number; };
    if (std::none_of(groups.begin(), groups.end(), is_own)) continue;
    for (const double stretch : kStretches) {
      out[number] = stretch;
      if (means_of(errors, groups, out, floor, is_own).coverage >= kCoverage) break;
    }
  }
  return out;
}

/// Returns the best choice with these classes: the narrowest with enough coverage, else the one
/// with the highest coverage.
Scored best_of(const std::vector<ResidualRow>& rows, const std::vector<std::size_t>& members,
               const std::vector<Path>& classes) {
  std::optional<Scored> best;
  for (const double floor : kFloors) {
    const Errors errors{rows, members, floor, classes};
    for (const double upper : kUpperWeights) {
      const std::vector<Group> groups = left_out_groups(errors, upper);
      std::vector<double> stretches = stretches_of(errors, groups, classes.size(), floor);
      const LeftOutMeans means =
          means_of(errors, groups, stretches, floor, [](const Group&) { return true; });
      const Scored now{{classes, floor, upper, std::move(stretches)}, means.width, means.coverage};
      if (!best || now.is_better(*best)) best = now;
    }
  }
  return *best;
}

/// Returns the classes with one more word than a class in `known` and enough documents.
std::set<Path> further_classes(const std::vector<ResidualRow>& rows,
                               const std::vector<std::size_t>& members,
                               const std::vector<Path>& known) {
  std::map<Path, Rows> documents;
  for (const std::size_t i : members) {
    const ResidualRow& row = rows[i];
    const Path& above = known[class_chain(known, row.features).back()];
    if (above.size() == kMaxWords) continue;
    for (const std::string& word : row.features) {
      if (std::find(above.begin(), above.end(), word) != above.end()) continue;
      Path path = above;
      path.push_back(word);
      documents[path][row.document] += 1;
    }
  }
  std::set<Path> out;
  for (const auto& [path, of] : documents) {
    if (full_documents(of) >= kMinDocuments) out.insert(path);
  }
  return out;
}

Choice choose(const std::vector<ResidualRow>& rows, const std::vector<std::size_t>& members) {
  Scored best = best_of(rows, members, {Path{}});
  while (best.choice.classes.size() < kMaxClasses) {
    std::optional<Scored> next;
    for (const Path& path : further_classes(rows, members, best.choice.classes)) {
      std::vector<Path> classes = best.choice.classes;
      classes.push_back(path);
      Scored with = best_of(rows, members, classes);
      if (!next || with.is_better(*next)) next = std::move(with);
    }
    if (!next || !next->is_better(best, kMinGain)) break;
    best = *std::move(next);
  }
  return best.choice;
}

}  // namespace

double LeftOutEnds::score(double log_ratio) const {
  double out = high - low;
  if (log_ratio < low) out += (low - log_ratio) / kTail;
  if (log_ratio > high) out += (log_ratio - high) / kTail;
  return out;
}

FittedResiduals fit_residuals(const std::vector<ResidualRow>& rows) {
  std::map<std::string, std::vector<std::size_t>> by_metric;
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> apart;  // metric, word
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ResidualRow& row = rows[i];
    (row.apart.empty() ? by_metric[row.metric] : apart[{row.metric, row.apart}]).push_back(i);
  }
  KVSIM_CHECK(!by_metric.empty(), "no rows to fit residuals to");
  FittedResiduals out;
  out.left_out.resize(rows.size());
  const auto leave_out = [&](const Errors& errors, const Choice& best, bool is_apart) {
    for (const Group& group : left_out_groups(errors, best.upper)) {
      for (const std::size_t i : group.members) {
        const Errors::One& one = errors.rows()[i];
        if (one.apart != is_apart) continue;
        out.left_out[one.index] =
            ends_of(group, best.stretches[group.number], best.floor, one.row->response);
      }
    }
  };
  for (const auto& [metric, members] : by_metric) {
    const Choice best = choose(rows, members);
    const Errors errors{rows, members, best.floor, best.classes};
    leave_out(errors, best, false);
    const double within = spread_within_services(errors);
    out.classes.push_back(make_class(metric, errors, 0, best, within, out.left_out));
    for (const auto& [key, others] : apart) {
      if (key.first != metric) continue;
      Rows documents;
      for (const std::size_t i : others) documents[rows[i].document] += 1;
      if (full_documents(documents) < kMinDocuments) continue;
      std::vector<std::size_t> with_all = members;
      with_all.insert(with_all.end(), others.begin(), others.end());
      // Too few documents for a choice: stay close to the class of all rows.
      const Choice own{.classes = {Path{}, Path{key.second}},
                       .floor = best.floor,
                       .upper = kUpperWeights.back(),
                       .stretches = {1, 1}};
      const Errors both{rows, with_all, own.floor, own.classes};
      leave_out(both, own, true);
      out.classes.push_back(make_class(metric, both, 1, own, within, out.left_out));
    }
    // In the order in which they were chosen: the first class that matches a run is used.
    for (std::size_t number = 1; number < best.classes.size(); ++number) {
      out.classes.push_back(make_class(metric, errors, number, best, within, out.left_out));
    }
  }
  return out;
}

}  // namespace kvsim
