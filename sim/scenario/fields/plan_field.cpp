#include "sim/scenario/fields/plan_field.hpp"

#include <algorithm>
#include <cmath>
#include <system_error>

#include <fmt/format.h>

#include "models/gpu/gpu_of_user.hpp"
#include "models/units/error.hpp"
#include "models/units/number_text.hpp"
#include "sim/scenario/fields/key_value.hpp"

namespace kvsim {
namespace {

struct Price {
  double amount = 0;
  std::string currency;
};

/// "2.5 USD/h".
Price read_price(const Field& field) {
  constexpr std::string_view kWanted = "a price of one GPU an hour, such as \"2.5 USD/h\"";
  if (!field.is_string()) field.expected(kWanted);
  const std::string text = field.string();
  Price price;
  const auto [end, status] =
      number_from_chars(text.data(), text.data() + text.size(), price.amount, true);
  if (status != std::errc{} || !std::isfinite(price.amount) || price.amount < 0) {
    field.expected(kWanted);
  }
  const std::string rest{end, text.data() + text.size()};
  constexpr std::string_view kPerHour = "/h";
  const bool letters =
      rest.size() > kPerHour.size() + 1 && rest.front() == ' ' && rest.ends_with(kPerHour) &&
      std::all_of(rest.begin() + 1, rest.end() - kPerHour.size(),
                  [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); });
  if (!letters) field.expected(kWanted);
  price.currency = rest.substr(1, rest.size() - 1 - kPerHour.size());
  return price;
}

void read_prices(const Field& field, PlanSection& plan) {
  if (!field.is_object()) field.expected("an object of GPUs and prices");
  for (const auto& [name, value] : field.members()) {
    if (value.is_null()) continue;
    std::string known;
    try {
      known = gpu_of_user(name).gpu->name;
    } catch (const InputError& error) {
      value.fail(error.what());
    }
    const Price price = read_price(value);
    if (!plan.currency.empty() && plan.currency != price.currency) {
      value.fail(fmt::format("is in {}, and another price in {}", price.currency, plan.currency));
    }
    plan.currency = price.currency;
    if (!plan.prices.emplace(known, price.amount).second) {
      value.fail(fmt::format("{} has two prices", known));
    }
  }
}

QualityFloor read_quality(const Field& field, const std::filesystem::path& folder) {
  const KeyReader quality{field, "quality"};
  QualityFloor floor;
  const Field trace = quality.at("trace");
  floor.named = trace.string();
  floor.trace = (folder / floor.named).lexically_normal();
  if (std::error_code status; !std::filesystem::is_regular_file(floor.trace, status)) {
    trace.fail(fmt::format("no such file: {}", floor.trace.string()));
  }
  floor.max_rel_error = quality.number("max_rel_error");
  floor.min_retained_mass = quality.number("min_retained_mass");
  if (floor.max_rel_error && floor.min_retained_mass) {
    field.fail("has both \"max_rel_error\" and \"min_retained_mass\"; give one of them");
  }
  if (!floor.max_rel_error && !floor.min_retained_mass) {
    field.fail("has neither \"max_rel_error\" nor \"min_retained_mass\"");
  }
  floor.bisect_step = quality.number("bisect_step");
  return floor;
}

}  // namespace

std::string_view name_of(PlanQuestion question) {
  static const std::vector<std::string> names = names_of(scenario_key("plan", "questions").type);
  return names.at(static_cast<std::size_t>(question));
}

PlanSection read_plan(const Field& field, const std::filesystem::path& folder) {
  const KeyReader plan{field, "plan"};
  PlanSection out;
  for (const Field& item : plan.at("questions").one_or_more()) {
    const auto question = read_enum<PlanQuestion>(item, "plan", "questions");
    if (std::find(out.questions.begin(), out.questions.end(), question) != out.questions.end()) {
      item.fail(fmt::format("{} is given twice", name_of(question)));
    }
    out.questions.push_back(question);
  }
  if (out.questions.empty()) plan.at("questions").expected("at least one question");
  if (const auto share = plan.number("confidence")) out.confidence = *share;
  if (const auto share = plan.number("attainment")) out.attainment = *share;
  if (const auto quality = plan.find("quality")) out.quality = read_quality(*quality, folder);
  if (const auto prices = plan.find("prices")) read_prices(*prices, out);
  if (const auto max = plan.integer("most_gpus")) out.max_gpus = *max;
  if (const auto step = plan.number("rate_step")) out.rate_step = *step;
  if (const auto beyond = plan.boolean("beyond_positions")) out.beyond_positions = *beyond;
  if (const auto gpus = plan.integer("layouts")) {
    out.layouts = LayoutSearch{.gpus = static_cast<std::int32_t>(*gpus)};
  }
  if (const auto split = plan.boolean("disaggregated")) {
    if (!out.layouts) plan.at("disaggregated").fail("expected \"layouts\" with it");
    out.layouts->disaggregated = *split;
  }
  return out;
}

}  // namespace kvsim
