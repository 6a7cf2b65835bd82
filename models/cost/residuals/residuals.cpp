#include "models/cost/residuals/residuals.hpp"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/format.h>

#include "models/json/embedded.hpp"
#include "models/units/error.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> residual_files();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

constexpr std::string_view kSchema = "kvsim.residuals/1";
constexpr double kMaxRatio = 1e6;

ResidualClass read_class(const Field& field) {
  field.allow_only({"metric", "stack", "complete", "queued", "low", "high", "documents", "rows",
                    "coverage", "interval_score"});
  constexpr std::int64_t kMostRows = 1'000'000'000;
  const std::vector<std::string> metrics{"ttft", "tpot", "itl", "e2e", "throughput"};
  ResidualClass out{.key = {.metric = field.at("metric").choice(metrics),
                            .stack = field.at("stack").string(),
                            .complete = field.at("complete").boolean(),
                            .is_queued = field.at("queued").boolean()},
                    .low = field.at("low").number(1 / kMaxRatio, kMaxRatio),
                    .high = field.at("high").number(1 / kMaxRatio, kMaxRatio),
                    .documents = field.at("documents").integer(1, kMostRows),
                    .rows = field.at("rows").integer(1, kMostRows),
                    .coverage = field.at("coverage").number(0, 1),
                    .interval_score = field.at("interval_score").number(0, kMaxRatio)};
  if (out.low > out.high) field.at("high").fail("expected a number of at least \"low\"");
  return out;
}

}  // namespace

std::string ResidualKey::words() const {
  const std::string name = metric == "throughput" ? metric : [&] {
    std::string upper = metric;
    for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return upper;
  }();
  return fmt::format("{} of {}, {}, {}", name, stack.empty() ? "all stacks" : stack,
                     complete ? "all settings stated" : "settings not all stated",
                     is_queued ? "with a queue" : "without a queue");
}

const ResidualClass* ServiceResiduals::find(const ResidualKey& key) const {
  ResidualKey wanted = key;
  for (int tries = 0; tries < 2; ++tries) {
    const auto found =
        std::find_if(classes_.begin(), classes_.end(),
                     [&](const ResidualClass& known) { return known.key == wanted; });
    if (found != classes_.end()) return &*found;
    wanted.stack.clear();
  }
  return nullptr;
}

ServiceResiduals read_residuals(const Field& document) {
  document.allow_only({"schema", "provenance", "date", "classes"});
  if (document.at("schema").string() != kSchema) {
    document.at("schema").expected(fmt::format("\"{}\"", kSchema));
  }
  std::vector<ResidualClass> classes;
  for (const Field& item : document.at("classes").items()) classes.push_back(read_class(item));
  return ServiceResiduals{std::move(classes)};
}

const ServiceResiduals& ServiceResiduals::builtin() {
  static const ServiceResiduals known = [] {
    const auto& file = embedded::residual_files().front();
    return read_residuals(Field::parse(file.text, "models/cost/residuals/services.json"));
  }();
  return known;
}

}  // namespace kvsim
