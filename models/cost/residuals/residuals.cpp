#include "models/cost/residuals/residuals.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include <boost/math/special_functions/erf.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/json/embedded.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> residual_files();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

constexpr std::string_view kSchema = "kvsim.residuals/2";
constexpr double kMaxError = 20;  // e^20: no measured time is this far from a prediction

double deviate(double share) { return boost::math::erf_inv(2 * share - 1) * std::sqrt(2.0); }

/// Returns the value at `x` of the line through two points; for a vertical line its midpoint.
double on_line(double x, double x0, double y0, double x1, double y1) {
  return x1 > x0 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) : 0.5 * (y0 + y1);
}

ResidualClass read_class(const Field& field) {
  field.allow_only({"metric", "path", "quantiles", "floor", "within", "documents", "rows",
                    "coverage", "interval_score"});
  constexpr std::int64_t kMaxRows = 1'000'000'000;
  constexpr double kMaxScore = 1e6;
  ResidualClass out{.metric = field.at("metric").string(),
                    .path = {},
                    .quantiles = {},
                    .floor = field.at("floor").number(0, kMaxError),
                    .within = field.at("within").number(0, kMaxError),
                    .documents = field.at("documents").integer(1, kMaxRows),
                    .rows = field.at("rows").integer(1, kMaxRows),
                    .coverage = field.at("coverage").number(0, 1),
                    .interval_score = field.at("interval_score").number(0, kMaxScore)};
  for (const Field& word : field.at("path").items()) out.path.push_back(word.string());
  const std::vector<Field> values = field.at("quantiles").items();
  if (values.size() != out.quantiles.size()) {
    field.at("quantiles")
        .fail(fmt::format("expected {} numbers, got {}", out.quantiles.size(), values.size()));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    out.quantiles[i] = values[i].number(-kMaxError, kMaxError);
    if (i > 0 && out.quantiles[i] < out.quantiles[i - 1]) {
      values[i].fail("expected quantiles that ascend");
    }
  }
  return out;
}

ResidualModel read_builtin(std::string_view name) {
  for (const embedded::EmbeddedFile& file : embedded::residual_files()) {
    if (file.name != name) continue;
    return read_residuals(
        Field::parse(file.text, fmt::format("models/cost/residuals/{}", file.name)));
  }
  throw ContractError{fmt::format("no residuals {} are built in", name)};
}

}  // namespace

namespace {

bool is_side(const Response::Side& side) {
  const std::vector<double>& errors = side.errors;
  const std::vector<double>& changes = side.changes;
  return !errors.empty() && errors.size() == changes.size() && errors.front() > 0 &&
         std::adjacent_find(errors.begin(), errors.end(), std::greater_equal<>{}) == errors.end() &&
         changes.front() >= 0 && std::is_sorted(changes.begin(), changes.end());
}

/// A linear piece of a side: offset + slope x error, from the previous error up to `end`.
struct Piece {
  double offset, slope, end;
  [[nodiscard]] double at(double error, double floor) const {
    return std::hypot(offset + slope * error, floor * error);
  }
};

/// Beyond the last point the slope is at most 1: in a saturated run, times to first tokens grow
/// roughly in proportion to iteration times.
std::vector<Piece> pieces_of(const Response::Side& side) {
  std::vector<Piece> out;
  double error = 0, change = 0, slope = 0;
  for (std::size_t i = 0; i < side.errors.size(); ++i) {
    slope = (side.changes[i] - change) / (side.errors[i] - error);
    out.push_back({change - slope * error, slope, side.errors[i]});
    error = side.errors[i];
    change = side.changes[i];
  }
  slope = std::min(1.0, slope);
  out.push_back({change - slope * error, slope, std::numeric_limits<double>::infinity()});
  return out;
}

}  // namespace

Response::Response(Side up, Side down) : up_{std::move(up)}, down_{std::move(down)} {
  KVSIM_CHECK(is_side(up_) && is_side(down_), "a response with {} points above and {} below",
              up_.errors.size(), down_.errors.size());
}

Response Response::linear(double slope) {
  // Two points, so that slopes above 1 continue to the largest considered error.
  const Side side{.errors = {1, kMaxError}, .changes = {slope, slope * kMaxError}};
  return {side, side};
}

double Response::change(double error, double floor) const {
  const double size = std::abs(error);
  for (const Piece& piece : pieces_of(error < 0 ? down_ : up_)) {
    if (size <= piece.end) return std::copysign(piece.at(size, floor), error);
  }
  return 0;  // not reached: the last piece has no end
}

double Response::error(double change, double floor) const {
  const double size = std::abs(change);
  for (const Piece& piece : pieces_of(change < 0 ? down_ : up_)) {
    if (std::isfinite(piece.end) && piece.at(piece.end, floor) < size) continue;
    // (offset + slope e)^2 + (floor e)^2 = size^2
    const double a = piece.slope * piece.slope + floor * floor;
    const double b = piece.offset * piece.slope;
    const double c = piece.offset * piece.offset - size * size;
    if (a <= 0) break;
    const double root = (std::sqrt(std::max(0.0, b * b - a * c)) - b) / a;
    return std::copysign(std::clamp(root, 0.0, kMaxError), change);
  }
  return std::copysign(kMaxError, change);  // no error changes it this much
}

double Response::slope() const {
  return 0.5 *
         (up_.changes.front() / up_.errors.front() + down_.changes.front() / down_.errors.front());
}

double ResidualClass::quantile(double share) const {
  KVSIM_CHECK(share > 0 && share < 1, "a quantile at {}", share);
  const auto above = std::upper_bound(kResidualShares.begin(), kResidualShares.end(), share);
  const auto i = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(
      above - kResidualShares.begin(), 1, std::ssize(kResidualShares) - 1));
  return on_line(deviate(share), deviate(kResidualShares[i - 1]), quantiles[i - 1],
                 deviate(kResidualShares[i]), quantiles[i]);
}

double ResidualClass::share_below(double error) const {
  const auto above = std::upper_bound(quantiles.begin(), quantiles.end(), error);
  const auto i = static_cast<std::size_t>(
      std::clamp<std::ptrdiff_t>(above - quantiles.begin(), 1, std::ssize(quantiles) - 1));
  const double at = on_line(error, quantiles[i - 1], deviate(kResidualShares[i - 1]), quantiles[i],
                            deviate(kResidualShares[i]));
  return 0.5 * (1 + std::erf(at / std::sqrt(2.0)));
}

double ResidualClass::factor(double share, const Response& response) const {
  return std::exp(response.change(quantile(share), floor));
}

std::pair<double, double> residual_ends(const ResidualClass& of, double value,
                                        const Response& response) {
  return {value * std::min(1.0, of.factor(0.05, response)),
          value * std::max(1.0, of.factor(0.95, response))};
}

std::string ResidualClass::words() const {
  return fmt::format("{}{}{}: {} document{}", metric, path.empty() ? "" : ", ",
                     fmt::join(path, ", "), documents, documents == 1 ? "" : "s");
}

std::vector<std::size_t> class_chain(std::span<const std::vector<std::string>> paths,
                                     std::span<const std::string> features) {
  const auto is_feature = [&](const std::string& word) {
    return std::find(features.begin(), features.end(), word) != features.end();
  };
  std::vector<std::size_t> out;
  for (std::size_t depth = 0;; ++depth) {
    const auto next = std::find_if(paths.begin(), paths.end(), [&](const auto& path) {
      if (path.size() != depth) return false;
      if (depth == 0) return true;
      const std::vector<std::string>& above = paths[out.back()];
      return std::equal(above.begin(), above.end(), path.begin()) && is_feature(path.back());
    });
    if (next == paths.end()) return out;
    out.push_back(static_cast<std::size_t>(next - paths.begin()));
  }
}

const ResidualClass* ResidualModel::find(std::string_view metric,
                                         std::span<const std::string> features) const {
  std::vector<std::vector<std::string>> paths;
  std::vector<const ResidualClass*> of;
  for (const ResidualClass& c : classes_) {
    if (c.metric != metric) continue;
    paths.push_back(c.path);
    of.push_back(&c);
  }
  const std::vector<std::size_t> chain = class_chain(paths, features);
  return chain.empty() ? nullptr : of[chain.back()];
}

ResidualModel read_residuals(const Field& document) {
  document.allow_only({"schema", "provenance", "date", "classes"});
  if (document.at("schema").string() != kSchema) {
    document.at("schema").expected(fmt::format("\"{}\"", kSchema));
  }
  std::vector<ResidualClass> classes;
  for (const Field& item : document.at("classes").items()) classes.push_back(read_class(item));
  return ResidualModel{std::move(classes)};
}

const ResidualModel& ResidualModel::services() {
  static const ResidualModel known = read_builtin("services");
  return known;
}

const ResidualModel& ResidualModel::static_runs() {
  static const ResidualModel known = read_builtin("static");
  return known;
}

}  // namespace kvsim
