#include "sim/sweep/resumed_points.hpp"

#include <cstdint>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string shown(const json& value) {
  constexpr std::size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "…";
  return text;
}

/// "/batch: 4 there, 8 here": the keys in which this sweep differs from the interrupted one.
std::string differences(const json& then, const json& now) {
  constexpr std::size_t kMaxSaid = 3;
  std::vector<std::string> said;
  for (const json& change : json::diff(then, now)) {
    if (said.size() == kMaxSaid) {
      said.emplace_back("…");
      break;
    }
    const std::string path = change.at("path");
    const std::string op = change.at("op");
    const std::string before = op == "add" ? "absent" : shown(then.at(json::json_pointer{path}));
    const std::string after = op == "remove" ? "absent" : shown(change.at("value"));
    said.push_back(fmt::format("{}: {} there, {} here", path, before, after));
  }
  return fmt::format("{}", fmt::join(said, "; "));
}

void refuse_other_sweep(const Field& header, const SweepPlan& plan, std::string_view version,
                        const fs::path& file) {
  const auto schema = header.find("schema");
  if (!schema || schema->raw() != "kvsim.sweep-points/1") {
    throw InputError{fmt::format("{}: is not a points file of a sweep", file.string())};
  }
  if (const std::string by = header.at("kvsim").string(); by != version) {
    throw InputError{
        fmt::format("{}: was started by kvsim {} and this is kvsim {}, whose results may differ; "
                    "remove the folder to start over",
                    file.string(), by, version)};
  }
  if (header.at("hash").string() != plan.hash()) {
    throw InputError{fmt::format("{}: belongs to another sweep: {}", file.string(),
                                 differences(header.at("sweep").raw(), plan.echo()))};
  }
}

}  // namespace

std::vector<std::string> resumed_points(const PointsContent& content, const SweepPlan& plan,
                                        std::string_view version, const fs::path& file) {
  refuse_other_sweep(Field::wrap(content.header, fmt::format("{}:1", file.string())), plan, version,
                     file);
  std::vector<std::string> objects(plan.size());
  for (std::size_t i = 0; i < content.objects.size(); ++i) {
    const std::string& text = content.objects[i];
    const Field object = Field::parse(text, fmt::format("{}:{}", file.string(), i + 2));
    object.allow_only({"point", "hash", "results", "skipped"});
    const auto point = static_cast<std::size_t>(
        object.at("point").integer(0, static_cast<std::int64_t>(plan.size()) - 1));
    const bool skipped = object.has("skipped");
    if (skipped) {
      (void)object.at("skipped").string();
    } else {
      (void)object.at("hash").string();
      (void)object.at("results").members();
    }
    // Documents copy the text unchanged, cut where the results begin.
    if (!text.starts_with(fmt::format("{{\"point\":{},\"hash\":", point)) ||
        text.find(skipped ? ",\"skipped\":" : ",\"results\":") == std::string::npos) {
      object.fail("expected {\"point\":N,\"hash\":…,\"results\":…} as kvsim writes it");
    }
    objects[point] = text;
  }
  return objects;
}

}  // namespace kvsim
