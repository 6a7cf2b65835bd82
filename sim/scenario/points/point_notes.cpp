#include "sim/scenario/points/point_notes.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/methods/resolve/availability.hpp"
#include "models/methods/resolve/own_methods.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

/// Software of a stack, by the prefix of the stack's name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kSoftware{{
    {"vllm", "vllm"},
    {"sglang", "sglang"},
    {"trtllm", "trtllm"},
    {"lmdeploy", "lmdeploy"},
    {"hf-", "transformers"},
}};

/// Why the version of `stack` does not have a method that its software has; empty if it does.
std::string missing_in_version(const Availability& one, const Stack& stack) {
  const AvailabilityParts parts = parts_of(one);
  const std::string_view title = software_title(one.software);
  if (!parts.is_released()) {
    return parts.version == "main"
               ? fmt::format("it is in {}'s main branch, but not in a release", title)
               : fmt::format("it is in a pull request of {}", title);
  }
  const auto since = parse_engine_version(parts.version);
  const auto version = parse_engine_version(stack.version);
  if (!since || !version || *version >= *since) return {};
  return fmt::format("it is in {} since {}", title, parts.version);
}

}  // namespace

std::optional<std::string> missing_in_stack(const std::string& method, const Stack& stack) {
  const auto found = std::find_if(kSoftware.begin(), kSoftware.end(), [&](const auto& one) {
    return stack.name.starts_with(one.first);
  });
  if (found == kSoftware.end()) return std::nullopt;
  const std::string_view software = found->second;
  const std::vector<Availability> available = availability_of(method);
  // kvpress and released code run on transformers.
  const auto here = std::find_if(available.begin(), available.end(), [&](const Availability& one) {
    return one.software == software || (software == "transformers" &&
                                        (one.software == "kvpress" || one.software == "research"));
  });
  std::string title{software_title(software)};
  std::string where;
  if (here != available.end()) {
    where = missing_in_version(*here, stack);
    if (where.empty()) return std::nullopt;
    if (!stack.version.empty()) title += " " + stack.version;
  } else {
    where = available.empty() ? std::string{"no released software is known to have it"}
                              : "available in " + availability_versions(available);
  }
  return fmt::format("{} has no {}; numbers assume that it is built in ({})", title, method, where);
}

void add_method_notes(const std::string& method, const Stack& stack,
                      std::vector<std::string>& notes) {
  if (const auto own = own_method_note(method)) {
    notes.push_back(fmt::format("{}: {}; numbers assume that the engine has it", method, *own));
    return;
  }
  if (auto missing = missing_in_stack(method, stack)) notes.push_back(std::move(*missing));
}

std::optional<std::string> exceeded_positions(const Llm& llm, std::int64_t tokens) {
  if (llm.max_positions == 0 || tokens <= llm.max_positions) return std::nullopt;
  return fmt::format(
      "sequences exceed the {} positions of {}: memory and times only; engines refuse such "
      "sequences",
      with_commas(llm.max_positions), llm.name);
}

}  // namespace kvsim
