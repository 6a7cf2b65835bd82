#include "sim/replay/sampled_mean.hpp"

#include <cmath>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}
/// Requires at least two values.
double variance_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double x : values) sum += (x - mean) * (x - mean);
  return sum / static_cast<double>(values.size() - 1);
}

/// nullopt if a value is NaN.
std::optional<double> root_of(double variance) {
  return std::isfinite(variance) ? std::optional{std::sqrt(variance)} : std::nullopt;
}

/// Squared changes of a ratio of sums when one of the drawn parts is left out.
class Squares {
 public:
  explicit Squares(const SampledRatio::Part& all) : all_{all} {}
  /// Returns the jackknife term of `one` of the `count` drawn parts that add up to `group`. The
  /// other parts are scaled up to represent the group. nullopt if the ratio is then undefined.
  [[nodiscard]] std::optional<double> without(const SampledRatio::Part& group,
                                              const SampledRatio::Part& one,
                                              std::ptrdiff_t count) const {
    const auto n = static_cast<double>(count);
    const auto left = [n](double all, double of_group, double of_one) {
      return all - of_group + (of_group - of_one) * n / (n - 1);
    };
    const double below = left(all_.below, group.below, one.below);
    if (!(below > kNothing * all_.below)) return std::nullopt;
    const double change =
        left(all_.above, group.above, one.above) / below - all_.above / all_.below;
    return (n - 1) / n * change * change;
  }

 private:
  // Sums below this are zero up to rounding.
  static constexpr double kNothing = 1e-9;
  SampledRatio::Part all_;
};

}  // namespace

std::optional<double> SampledMean::standard_error(double layers, double heads,
                                                  std::span<const std::int32_t> strata) const {
  if (layers_.empty() || layers_.front().empty()) return std::nullopt;
  std::vector<double> means;
  double within = 0;  // mean variance between a layer's heads
  bool has_within = true;
  for (const std::vector<double>& of : layers_) {
    means.push_back(mean_of(of));
    has_within = has_within && of.size() > 1;
    if (has_within) within += variance_of(of) / static_cast<double>(layers_.size());
  }
  const auto n = static_cast<double>(means.size());
  const auto m = static_cast<double>(layers_.front().size());
  double variance = 0;
  if (layers < 1) {
    const auto all = static_cast<std::int32_t>(means.size());
    if (strata.empty()) strata = {&all, 1};
    // Without the spread between heads, the spread between layers contains all of it.
    const double left = heads < 1 && !has_within ? 1 : 1 - layers;
    auto next = means.begin();
    for (const std::int32_t count : strata) {
      if (count < 2) return std::nullopt;
      // The mean counts each layer once, and a stratum by its number of layers.
      variance += left * variance_of({next, next + count}) * count / (n * n);
      next += count;
    }
    KVSIM_CHECK(next == means.end(), "strata of {} layers, not {}", next - means.begin(), all);
  }
  if (heads < 1) {
    if (has_within) {
      variance += layers * (1 - heads) * within / (n * m);
    } else if (layers >= 1) {
      return std::nullopt;
    }
  }
  return root_of(variance);
}

SampledRatio::Part SampledRatio::total_of(std::size_t first, std::size_t end) const {
  Part sum;
  for (std::size_t layer = first; layer < end; ++layer) {
    for (const Part& head : layers_[layer]) sum += head;
  }
  return sum;
}

std::optional<double> SampledRatio::between_layers(std::span<const std::int32_t> strata) const {
  const Part all = total_of(0, layers_.size());
  const Squares squares{all};
  double variance = 0;
  std::size_t first = 0;
  for (const std::int32_t count : strata) {
    if (count < 2) return std::nullopt;
    const std::size_t end = first + static_cast<std::size_t>(count);
    KVSIM_CHECK(end <= layers_.size(), "strata of more than {} layers", layers_.size());
    const Part stratum = total_of(first, end);
    for (std::size_t layer = first; layer < end; ++layer) {
      const auto change = squares.without(stratum, total_of(layer, layer + 1), count);
      if (!change) return std::nullopt;
      variance += *change;
    }
    first = end;
  }
  KVSIM_CHECK(first == layers_.size(), "strata of {} layers, not {}", first, layers_.size());
  return variance;
}

std::optional<double> SampledRatio::within_layers() const {
  const Squares squares{total_of(0, layers_.size())};
  double variance = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const Part whole = total_of(layer, layer + 1);
    for (const Part& head : layers_[layer]) {
      const auto change = squares.without(whole, head, std::ssize(layers_[layer]));
      if (!change) return std::nullopt;
      variance += *change;
    }
  }
  return variance;
}

std::optional<double> SampledRatio::standard_error(double layers, double heads,
                                                   std::span<const std::int32_t> strata) const {
  if (layers_.empty() || layers_.front().empty()) return std::nullopt;
  bool has_within = true;
  for (const auto& of : layers_) has_within = has_within && of.size() > 1;
  double variance = 0;
  if (layers < 1) {
    const auto all = static_cast<std::int32_t>(layers_.size());
    const auto between = between_layers(strata.empty() ? std::span{&all, 1} : strata);
    if (!between) return std::nullopt;
    // Without the spread between heads, the spread between layers contains all of it.
    variance += (heads < 1 && !has_within ? 1 : 1 - layers) * *between;
  }
  if (heads < 1) {
    if (has_within) {
      const auto within = within_layers();
      if (!within) return std::nullopt;
      variance += layers * (1 - heads) * *within;
    } else if (layers >= 1) {
      return std::nullopt;
    }
  }
  return root_of(variance);
}

}  // namespace kvsim
