#include "sim/cli/explain/explain_parts.hpp"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

constexpr double kMax = 1e300;
constexpr double kRounding = 1e-9;  // of sums of seconds; bytes are whole

}  // namespace

std::string explained_unit(const MetricInfo& info) {
  return info.unit == "share" ? "" : std::string{info.unit};
}

double explained_number(const Field& field) { return field.number(-kMax, kMax); }

std::optional<double> maybe_number(const Field& object, std::string_view key) {
  const auto field = object.find(key);
  if (!field) return std::nullopt;
  return explained_number(*field);
}

std::string text_or_none(const Field& object, std::string_view key) {
  const auto field = object.find(key);
  return field ? field->string() : std::string{};
}

void resolve(Explanation& out, const Field& place, std::string_view of, std::string_view unit,
             double total) {
  double sum = 0;
  for (const ExplainedTerm& term : out.terms) sum += term.value;
  if (std::abs(sum - total) > kRounding * std::abs(total)) {
    place.fail(fmt::format("terms that sum to {:.12g} {}, {} is {:.12g}", sum, unit, of, total));
  }
  out.terms_of = of;
  out.terms_unit = unit;
  out.total = total;
}

void fail_without(const Field& point, std::string_view key, std::string_view why) {
  point.fail(fmt::format("there is no {}: {}", key, why));
}

std::size_t which_of(const Field& place, std::string_view what,
                     const std::vector<std::string>& labels, std::string_view which) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (!which.empty() && labels[i] == which) return i;
  }
  if (labels.empty()) place.fail(fmt::format("there is no {}", what));
  if (which.empty()) {
    if (labels.size() == 1) return 0;
    place.fail(fmt::format("{} {}s: --point takes a number from 0 to {} or a label (\"{}\", …)",
                           labels.size(), what, labels.size() - 1, labels.front()));
  }
  std::size_t number = 0;
  const auto [end, status] = std::from_chars(which.data(), which.data() + which.size(), number);
  if (status == std::errc{} && end == which.data() + which.size() && number < labels.size()) {
    return number;
  }
  if (status == std::errc{} && end == which.data() + which.size()) {
    place.fail(fmt::format("{} {}s: --point takes a number from 0 to {}, got {}", labels.size(),
                           what, labels.size() - 1, which));
  }
  place.fail(unknown_name(what, which, labels));
}

std::string count_text(double n) {
  constexpr double kWhole = 9e18;
  return std::abs(n) < kWhole ? with_commas(static_cast<std::int64_t>(n))
                              : fmt::format("{:.6g}", n);
}

std::string percent_text(double share) {
  constexpr double kPercent = 100;
  return fmt::format("{:.1f} %", kPercent * share);
}

Explanation explain_step(const Field& point, const Field& step, std::string_view key) {
  Explanation out{.key = std::string{key},
                  .point = point.at("label").string(),
                  .unit = "s",
                  .value = explained_number(step.at("step_s")),
                  .low = maybe_number(step, "step_s_low"),
                  .high = maybe_number(step, "step_s_high")};
  if (const auto bases = point.find("interval_basis")) out.basis = text_or_none(*bases, "time");
  const Field terms = step.at("terms");
  for (const Field& term : terms.items()) {
    out.terms.push_back({.what = term.at("what").string(),
                         .value = explained_number(term.at("seconds")),
                         .low = maybe_number(term, "seconds_low"),
                         .high = maybe_number(term, "seconds_high"),
                         .formula = text_or_none(term, "formula"),
                         .basis = text_or_none(term, "basis"),
                         .source = text_or_none(term, "source")});
  }
  resolve(out, terms, key, "s", *out.value);
  const double at = explained_number(step.at("step"));
  out.notes.push_back(
      at == 0 ? fmt::format("prefill of {} tokens a sequence", explained_number(step.at("tokens")))
              : fmt::format("decode step {}, which brings each sequence to {} "
                            "tokens",
                            at, explained_number(step.at("tokens"))));
  return out;
}

}  // namespace kvsim
