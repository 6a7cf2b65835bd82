#include "models/quality/quality_model.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "models/units/names.hpp"

namespace kvsim {
namespace {

// Weight factors per difference: round numbers, chosen by leave-one-pair-out errors.
constexpr double kOtherMethod = 0.005;
constexpr double kOtherHarness = 0.3;
constexpr double kOtherProtocol = 0.02;
constexpr double kOtherUnit = 0.05;   // different budget units, or an unstated width
constexpr double kBudgetScale = 0.5;  // of the logarithm of budgets
constexpr double kBitsScale = 0.25;   // of the logarithm of bits
constexpr double kOtherTask = 0.03;
constexpr double kPairPower = 0.3;  // a pair of n rows weighs n^(1 - this)
constexpr double kMinWeight = 1e-9;

constexpr double kHighest = 1.3;      // scores far above the full one are noise of small scores
constexpr double kFloor = 0.03;       // of the spread: noise of tasks
constexpr double kTail = 0.05;        // outside a 90 % interval on each side
constexpr std::size_t kMinPairs = 6;  // for an interval
constexpr std::size_t kMinRows = 50;

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.starts_with(word); });
}

/// Returns when the cache is compressed, and whether the question is known at that time.
std::string protocol_of(const QualityRow& row) {
  const std::string phase{row.when.substr(0, row.when.find(';'))};
  return phase + (row.when.find("agnostic") != std::string::npos ? ";agnostic" : "");
}

double closeness(const std::optional<double>& a, const std::optional<double>& b, double scale) {
  if (!a || !b || *a <= 0.0 || *b <= 0.0) return kOtherUnit;
  return std::exp(-std::abs(std::log(*a / *b)) / scale);
}

/// The properties that are compared between two rows.
struct Likeness {
  QualityKind kind;
  std::string method, harness, protocol, task, unit, model;
  std::optional<double> budget, bits;

  explicit Likeness(const QualityRow& row)
      : kind{quality_kind(row)},
        method{row.method},
        harness{row.harness()},
        protocol{protocol_of(row)},
        task{row.task},
        unit{row.budget_unit},
        model{folded_name(row.model)},
        budget{row.budget},
        bits{row.bits} {}

  /// 0 for a different kind.
  [[nodiscard]] double to(const Likeness& other) const {
    if (kind != other.kind) return 0.0;
    double weight = method == other.method ? 1.0 : kOtherMethod;
    if (harness != other.harness) weight *= kOtherHarness;
    if (task != other.task) weight *= kOtherTask;
    if (kind == QualityKind::kFormat) return weight * closeness(bits, other.bits, kBitsScale);
    if (kind == QualityKind::kCompute) return weight;
    if (protocol != other.protocol) weight *= kOtherProtocol;
    return weight *
           (unit == other.unit ? closeness(budget, other.budget, kBudgetScale) : kOtherUnit);
  }
  [[nodiscard]] bool supports(const Likeness& other) const {
    return method == other.method &&
           (harness == other.harness || (kind == other.kind && protocol == other.protocol));
  }
};

class ErrorSum {
 public:
  void add(const std::optional<QualityPrediction>& p, double retained, std::size_t pair) {
    if (!p || !p->supported) {
      ++out_.unsupported;
      return;
    }
    errors_.push_back(std::abs(retained - p->retained));
    bias_ += p->retained - retained;
    pairs_.insert(pair);
    if (!p->low) return;
    ++out_.bounded;
    width_ += *p->high - *p->low;
    if (*p->low <= retained && retained <= *p->high) ++within_;
  }
  LeaveOutError take() {
    out_.rows = errors_.size();
    out_.pairs = pairs_.size();
    if (errors_.empty()) return out_;
    const auto n = static_cast<double>(errors_.size());
    double sum = 0.0;
    for (const double error : errors_) sum += error;
    std::sort(errors_.begin(), errors_.end());
    out_.mean_absolute = sum / n;
    out_.median_absolute = errors_[errors_.size() / 2];
    out_.bias = bias_ / n;
    if (out_.bounded > 0) {
      out_.coverage = static_cast<double>(within_) / static_cast<double>(out_.bounded);
      out_.mean_width = width_ / static_cast<double>(out_.bounded);
    }
    return out_;
  }

 private:
  LeaveOutError out_{};
  std::vector<double> errors_{};
  std::set<std::size_t> pairs_{};
  std::size_t within_ = 0;
  double bias_ = 0.0, width_ = 0.0;
};

}  // namespace

QualityKind quality_kind(const QualityRow& row) {
  if (row.when.find("compute only") != std::string::npos) return QualityKind::kCompute;
  if (row.bits && *row.bits < 16.0) return QualityKind::kFormat;
  if (row.budget && *row.budget == 1.0 && row.budget_unit != "tokens") return QualityKind::kFormat;
  if (!row.when.starts_with("decode")) return QualityKind::kEviction;
  // Answers of these tasks are short: hardly any entry is evicted during generation.
  return starts_with_any(row.task, {"ruler", "longbench"}) ? QualityKind::kShortDecode
                                                           : QualityKind::kDecodeEviction;
}

std::string_view name_of(QualityKind kind) {
  static constexpr std::array<std::string_view, kQualityKinds> kNames{
      "eviction", "eviction while decoding", "eviction while decoding, short answers", "format",
      "sparse prefill"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// Rows in the form used for comparisons.
struct QualityModel::Evidence {
  std::vector<Likeness> likeness{};
};

QualityModel::~QualityModel() = default;

QualityModel::QualityModel(std::span<const QualityRow> rows)
    : evidence_{std::make_unique<Evidence>()} {
  std::map<std::string, std::size_t> numbers;
  for (const QualityRow& row : rows) {
    const auto retained = row.retained();
    if (!retained || row.is_full()) continue;
    const Likeness likeness{row};
    const std::string pair = likeness.harness + "\n" + likeness.model;
    const auto [at, is_new] = numbers.try_emplace(pair, pairs_.size());
    if (is_new) {
      pairs_.push_back(pair);
      pair_rows_.push_back(0.0);
    }
    ++pair_rows_[at->second];
    row_pairs_.push_back(at->second);
    retained_.push_back(std::clamp(*retained, 0.0, kHighest));
    evidence_->likeness.push_back(likeness);
  }
  for (std::size_t i = 0; i < retained_.size(); ++i) {
    const auto p = mean_of(i, LeaveOut::kModel);
    if (!p || !p->supported) continue;
    const auto kind = static_cast<std::size_t>(evidence_->likeness[i].kind);
    scores_[kind].push_back({.pair = row_pairs_[i],
                             .model = evidence_->likeness[i].model,
                             .error = (retained_[i] - p->retained) / (kFloor + p->spread)});
  }
  for (auto& scores : scores_) {
    std::sort(scores.begin(), scores.end(),
              [](const Score& a, const Score& b) { return a.error < b.error; });
  }
}

template <class Query, class Skip>
std::optional<QualityPrediction> QualityModel::mean(const Query& query, Skip skip) const {
  QualityPrediction out;
  double weights = 0.0;
  double sum = 0.0;
  double squares = 0.0;
  std::set<std::string_view> models;
  for (std::size_t i = 0; i < retained_.size(); ++i) {
    const Likeness& other = evidence_->likeness[i];
    if (skip(i)) continue;
    double weight = query.to(other);
    if (query.supports(other)) {
      out.supported = true;
      ++out.rows;
      models.insert(other.model);
    }
    if (weight < kMinWeight) continue;
    weight /= std::pow(pair_rows_[row_pairs_[i]], kPairPower);
    weights += weight;
    sum += weight * retained_[i];
    squares += weight * retained_[i] * retained_[i];
  }
  if (weights <= 0.0) return std::nullopt;
  out.models = models.size();
  out.retained = sum / weights;
  out.spread = std::sqrt(std::max(0.0, squares / weights - out.retained * out.retained));
  return out;
}

std::optional<QualityPrediction> QualityModel::mean_of(std::size_t row, LeaveOut out) const {
  const Likeness& query = evidence_->likeness[row];
  return mean(query, [&](std::size_t i) {
    if (out == LeaveOut::kModel && evidence_->likeness[i].model == query.model) return true;
    return row_pairs_[i] == row_pairs_[row];
  });
}

void QualityModel::add_interval(QualityPrediction& p, QualityKind kind,
                                std::string_view model) const {
  if (!p.supported) return;
  std::vector<double> errors;
  std::set<std::size_t> pairs;
  for (const Score& score : scores_[static_cast<std::size_t>(kind)]) {
    if (score.model == model) continue;
    errors.push_back(score.error);
    pairs.insert(score.pair);
  }
  if (pairs.size() < kMinPairs || errors.size() < kMinRows) return;
  // The smallest error whose tail is within this share: conservative by less than one row.
  const auto at = [&](double share) {
    const double place = std::ceil(share * static_cast<double>(errors.size())) - 1.0;
    return errors[static_cast<std::size_t>(std::max(0.0, place))];
  };
  const double unit = kFloor + p.spread;
  p.low = std::max(0.0, p.retained + at(kTail) * unit);
  p.high = std::min(kHighest, p.retained + at(1.0 - kTail) * unit);
}

std::optional<QualityPrediction> QualityModel::predict(const QualityRow& query) const {
  const Likeness likeness{query};
  auto p = mean(likeness, [](std::size_t) { return false; });
  if (p) add_interval(*p, likeness.kind, "");
  return p;
}

std::optional<QualityPrediction> QualityModel::predict_without(const QualityRow& query,
                                                               LeaveOut out) const {
  const Likeness likeness{query};
  const std::string pair = likeness.harness + "\n" + likeness.model;
  const auto found = std::find(pairs_.begin(), pairs_.end(), pair);
  const std::size_t number =
      found == pairs_.end() ? kNoPair : static_cast<std::size_t>(found - pairs_.begin());
  auto p = mean(likeness, [&](std::size_t i) {
    return row_pairs_[i] == number ||
           (out == LeaveOut::kModel && evidence_->likeness[i].model == likeness.model);
  });
  if (p) add_interval(*p, likeness.kind, likeness.model);
  return p;
}

LeaveOutError QualityModel::leave_out_error(LeaveOut out, QualityKind kind) const {
  ErrorSum sum;
  for (std::size_t i = 0; i < retained_.size(); ++i) {
    if (evidence_->likeness[i].kind != kind) continue;
    auto p = mean_of(i, out);
    if (p) add_interval(*p, kind, evidence_->likeness[i].model);
    sum.add(p, retained_[i], row_pairs_[i]);
  }
  return sum.take();
}

LeaveOutError QualityModel::error_of(std::span<const QualityRow> rows, QualityKind kind) const {
  ErrorSum sum;
  std::map<std::string, std::size_t> pairs;
  for (const QualityRow& row : rows) {
    const auto retained = row.retained();
    if (!retained || row.is_full() || quality_kind(row) != kind) continue;
    const std::string pair = row.harness() + "\n" + folded_name(row.model);
    const std::size_t number = pairs.try_emplace(pair, pairs.size()).first->second;
    sum.add(predict(row), std::clamp(*retained, 0.0, kHighest), number);
  }
  return sum.take();
}

}  // namespace kvsim
