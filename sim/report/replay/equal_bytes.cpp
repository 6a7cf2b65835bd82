#include "sim/report/replay/equal_bytes.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "sim/report/figure/line_names.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

double share_of(const ReplayMethod& method) {
  return static_cast<double>(method.bytes_held_final) /
         static_cast<double>(method.bytes_full_final);
}

/// Whether a user may choose the method instead of the full cache.
bool competes(const ReplayMethod& method) {
  const bool holds_all = !method.budget && method.bytes_held_final >= method.bytes_full_final;
  return method.bytes_full_final > 0 && method.steps > 0 && !holds_all &&
         !method.name.starts_with("oracle");
}

std::string name_with_budget(const ReplayMethod& method) {
  const std::string budget = method.budget ? " " + budget_text(*method.budget) : "";
  return fmt::format("{}{}", clean_text(method.name), budget);
}

}  // namespace

double ranked_error(const ReplayMethod& method) {
  return method.answer_error_mean.value_or(method.rel_error_mean);
}

std::string_view where_ranked(const ReplayResult& replay) {
  const bool has_answers =
      std::any_of(replay.methods.begin(), replay.methods.end(),
                  [](const ReplayMethod& method) { return method.answer_error_mean.has_value(); });
  return has_answers ? " at the answers" : "";
}

std::vector<std::vector<std::size_t>> equal_bytes_bands(std::span<const double> shares) {
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return shares[a] < shares[b]; });
  std::vector<std::vector<std::size_t>> bands;
  for (const std::size_t i : order) {
    if (bands.empty() || shares[i] > shares[bands.back().front()] * kEqualBytes) {
      bands.emplace_back();
    }
    bands.back().push_back(i);
  }
  return bands;
}

std::vector<EqualBytes> equal_bytes(const ReplayResult& replay) {
  std::vector<const ReplayMethod*> all;
  std::vector<double> shares;
  for (const ReplayMethod& method : replay.methods) {
    if (!competes(method)) continue;
    all.push_back(&method);
    shares.push_back(share_of(method));
  }
  std::vector<EqualBytes> out;
  for (const std::vector<std::size_t>& band : equal_bytes_bands(shares)) {
    const bool several = std::any_of(band.begin(), band.end(), [&](std::size_t i) {
      return all[i]->name != all[band.front()]->name;
    });
    if (!several) continue;
    EqualBytes one{.low = shares[band.front()], .high = shares[band.back()], .methods = {}};
    for (const std::size_t i : band) one.methods.push_back(all[i]);
    std::stable_sort(one.methods.begin(), one.methods.end(),
                     [](const ReplayMethod* a, const ReplayMethod* b) {
                       return ranked_error(*a) < ranked_error(*b);
                     });
    out.push_back(std::move(one));
  }
  return out;
}

std::string share_range(double low, double high) {
  const std::string from = fmt::format("{:.3g}", 100 * low);
  const std::string to = fmt::format("{:.3g}", 100 * high);
  return from == to ? fmt::format("{} %", from) : fmt::format("{} to {} %", from, to);
}

std::string equal_bytes_table(const ReplayResult& replay, std::size_t width) {
  Table table{{{"bytes held", Table::Align::kLeft},
               {"methods"},
               {"least error", Table::Align::kLeft},
               {"next", Table::Align::kLeft}}};
  const std::vector<EqualBytes> bands = equal_bytes(replay);
  if (bands.empty()) return "";
  for (const EqualBytes& band : bands) {
    const auto cell = [&](std::size_t i) {
      const ReplayMethod& method = *band.methods.at(i);
      return fmt::format("{} {}", amount(ranked_error(method)), name_with_budget(method));
    };
    table.add_row({share_range(band.low, band.high), fmt::format("{}", band.methods.size()),
                   cell(0), cell(1)});
  }
  return table.str(width);
}

}  // namespace kvsim
