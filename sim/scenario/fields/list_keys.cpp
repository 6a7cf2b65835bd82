#include "sim/scenario/fields/list_keys.hpp"

#include <array>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 16> kListKeys{
    "model",       "gpu",       "gpu_count",     "stack",         "calibration",       "dtype",
    "kv_dtype",    "batch",     "prompt_tokens", "output_tokens", "pipeline_parallel", "cluster",
    "speculation", "scheduler", "requests",      "method"};

constexpr std::array kRequestLists{
    RequestList{"/file", "workload"},
    RequestList{"/rate_scale", "rate_scale"},
    RequestList{"/arrivals/rate", "rate"},
    RequestList{"/arrivals/users", "users"},
    RequestList{"/arrivals/cv", "cv"},
    RequestList{"/limit", "limit"},
    RequestList{"/prompt_scale", "prompt_scale"},
    RequestList{"/output_scale", "output_scale"},
};

}  // namespace

std::span<const std::string_view> list_keys() { return kListKeys; }

std::span<const RequestList> request_lists() { return kRequestLists; }

std::vector<std::string> list_members(std::string_view key) {
  if (key == "method") return {"/budget"};
  std::vector<std::string> out;
  if (key == "requests") {
    for (const RequestList& list : kRequestLists) out.emplace_back(list.pointer);
  }
  if (key == "cluster" || key == "speculation" || key == "scheduler") {
    for (const std::string& member : scenario_key_names(key)) out.push_back("/" + member);
  }
  return out;
}

std::vector<json> listed_values(const json& items, const std::vector<std::string>& members) {
  std::vector<json> all;
  for (const json& item : items) {
    std::vector<json> of_item{item};
    for (const std::string& member : members) {
      const json::json_pointer pointer{member};
      if (!item.is_object() || !item.contains(pointer) || !item.at(pointer).is_array()) continue;
      std::vector<json> longer;
      for (const json& before : of_item) {
        for (const json& value : item.at(pointer)) {
          longer.push_back(before);
          longer.back()[pointer] = value;
        }
      }
      of_item = std::move(longer);
      if (of_item.size() > kMaxPoints) {
        throw InputError{
            fmt::format("the lists of one value make more than {} points", kMaxPoints)};
      }
    }
    all.insert(all.end(), of_item.begin(), of_item.end());
  }
  return all;
}

}  // namespace kvsim
