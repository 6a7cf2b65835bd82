// Texts above the lines of a chart: names of levels and callouts.

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "sim/report/chart/line_layout.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim::chart {
namespace {

constexpr double kInset = 8;     // pixels from the ends of the plot
constexpr double kTextGap = 14;  // between two texts
constexpr double kStemGap = 5;   // between a text and the stem of another
constexpr double kLevelInset = 32;

double stem_of(const Banner& banner, const LineBox& box) { return box.pixel_x(banner.points_to.x); }

/// Whether two texts overlap, or the stem of one crosses the other.
bool collide(const Banner& a, const Banner& b, const LineBox& box) {
  if (a.row == b.row) return a.left < b.right + kTextGap && b.left < a.right + kTextGap;
  const Banner& upper = a.row > b.row ? a : b;
  const Banner& lower = a.row > b.row ? b : a;
  if (!upper.has_stem) return false;
  const double stem = stem_of(upper, box);
  return stem > lower.left - kStemGap && stem < lower.right + kStemGap;
}

bool is_free(const Banner& banner, const std::vector<Banner>& placed, const LineBox& box) {
  return std::none_of(placed.begin(), placed.end(),
                      [&](const Banner& other) { return collide(banner, other, box); });
}

int rows_of(const std::vector<Banner>& placed) {
  int rows = 0;
  for (const Banner& banner : placed) rows = std::max(rows, banner.row + 1);
  return rows;
}

/// Puts `banner` into the lowest row where it is free with its left end at one of `lefts`.
bool place(Banner& banner, const std::vector<double>& lefts, const std::vector<Banner>& placed,
           const LineBox& box) {
  const double width = banner.right - banner.left;
  const double last = std::max(kInset, box.width - width);
  for (banner.row = 0; banner.row <= rows_of(placed); ++banner.row) {
    for (const double left : lefts) {
      banner.left = std::clamp(left, kInset, last);
      banner.right = banner.left + width;
      if (is_free(banner, placed, box)) return true;
    }
  }
  return false;
}

/// Places callouts in order, each in the lowest free row. `leftwards`: texts are left of their
/// stems if there is space.
std::vector<Banner> placed_callouts(const std::vector<Banner>& callouts, bool leftwards,
                                    const LineBox& box) {
  std::vector<Banner> placed;
  for (Banner banner : callouts) {
    const double at = stem_of(banner, box);
    const double width = banner.right;
    const auto same_stem = std::count_if(
        callouts.begin(), callouts.end(),
        [&](const Banner& other) { return std::abs(stem_of(other, box) - at) < 2 * kStemGap; });
    std::vector<double> lefts{at + kStemGap + 1, at - kStemGap - 1 - width};
    if (leftwards) std::swap(lefts.front(), lefts.back());
    if (same_stem == 1) lefts.insert(lefts.begin(), at - width / 2);
    if (!place(banner, lefts, placed, box)) {
      banner.has_stem = false;  // its colour identifies its line
      banner.row = rows_of(placed);
    }
    placed.push_back(banner);
  }
  return placed;
}

}  // namespace

std::vector<Banner> banners_of(const LineChart& chart, const LineBox& box) {
  const double room = box.width - 2 * kInset;
  std::vector<Banner> callouts;
  for (const ChartCallout& callout : chart.callouts) {
    const std::string text = fitted(callout.text, room);
    callouts.push_back({.text = text,
                        .left = 0,
                        .right = text_pixels(text),
                        .points_to = callout.at,
                        .colour = callout.line ? line_style(*callout.line).colour : "#000000",
                        .has_stem = true});
  }
  // Ordered from one end, so that stems do not cross the texts below them; the end that keeps more
  // stems is used.
  std::stable_sort(callouts.begin(), callouts.end(),
                   [](const Banner& a, const Banner& b) { return a.points_to.x > b.points_to.x; });
  std::vector<Banner> placed = placed_callouts(callouts, false, box);
  std::reverse(callouts.begin(), callouts.end());
  std::vector<Banner> from_left = placed_callouts(callouts, true, box);
  const auto stems = [](const std::vector<Banner>& of) {
    return std::count_if(of.begin(), of.end(), [](const Banner& b) { return b.has_stem; });
  };
  if (stems(from_left) > stems(placed)) placed = std::move(from_left);
  for (const ChartLevel& level : chart.levels) {
    const std::string text =
        fitted(level.label + (is_drawn(chart, level) ? "" : " (above the plot)"), room);
    Banner banner{.text = text,
                  .left = 0,
                  .right = text_pixels(text),
                  .points_to = {box.x_low, level.y},
                  .colour = "#000000"};
    std::vector<double> lefts;
    for (double left = kLevelInset; left < box.width; left += kInset) lefts.push_back(left);
    if (!place(banner, lefts, placed, box)) banner.row = rows_of(placed);
    placed.push_back(banner);
  }
  return placed;
}

}  // namespace kvsim::chart
