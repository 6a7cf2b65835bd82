#include "sim/scenario/fields/plan_field.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <system_error>

#include <fmt/format.h>

#include "models/gpu/gpu_of_user.hpp"
#include "models/units/error.hpp"
#include "models/units/number_text.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

const std::vector<std::string> kQuestions{"longest_context", "largest_batch", "highest_rate",
                                          "fewest_gpus"};
constexpr double kMostConfidence = 0.999;
constexpr std::int64_t kMostPlanGpus = 4096;

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
  field.allow_only(scenario_key_names("quality"));
  QualityFloor floor;
  const Field trace = field.at("trace");
  floor.named = trace.string();
  floor.trace = (folder / floor.named).lexically_normal();
  if (std::error_code status; !std::filesystem::is_regular_file(floor.trace, status)) {
    trace.fail(fmt::format("no such file: {}", floor.trace.string()));
  }
  if (const auto error = field.find("max_rel_error")) floor.max_rel_error = error->number(0, 1e6);
  if (const auto mass = field.find("min_retained_mass"))
    floor.min_retained_mass = mass->number(0, 1);
  if (floor.max_rel_error && floor.min_retained_mass) {
    field.fail("has both \"max_rel_error\" and \"min_retained_mass\"; give one of them");
  }
  if (!floor.max_rel_error && !floor.min_retained_mass) {
    field.fail("has neither \"max_rel_error\" nor \"min_retained_mass\"");
  }
  if (const auto step = field.find("bisect_step")) floor.bisect_step = step->number(0.001, 0.5);
  return floor;
}

}  // namespace

std::string_view name_of(PlanQuestion question) {
  return kQuestions.at(static_cast<std::size_t>(question));
}

PlanSection read_plan(const Field& plan, const std::filesystem::path& folder) {
  plan.allow_only(scenario_key_names("plan"));
  PlanSection out;
  for (const Field& item : plan.at("questions").one_or_more()) {
    const auto found = std::find(kQuestions.begin(), kQuestions.end(), item.choice(kQuestions));
    const auto question = static_cast<PlanQuestion>(found - kQuestions.begin());
    if (std::find(out.questions.begin(), out.questions.end(), question) != out.questions.end()) {
      item.fail(fmt::format("{} is asked twice", *found));
    }
    out.questions.push_back(question);
  }
  if (out.questions.empty()) plan.at("questions").expected("at least one question");
  if (const auto share = plan.find("confidence")) {
    out.confidence = share->number(0, kMostConfidence);
  }
  if (const auto share = plan.find("attainment")) {
    out.attainment = share->number(0.01, 1);
  }
  if (const auto quality = plan.find("quality")) out.quality = read_quality(*quality, folder);
  if (const auto prices = plan.find("prices")) read_prices(*prices, out);
  if (const auto most = plan.find("most_gpus")) out.most_gpus = most->integer(1, kMostPlanGpus);
  if (const auto step = plan.find("rate_step")) out.rate_step = step->number(0.001, 1);
  if (const auto beyond = plan.find("beyond_positions")) out.beyond_positions = beyond->boolean();
  return out;
}

}  // namespace kvsim
