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

/// The software of a stack, by the prefix of the stack's name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kSoftware{{
    {"vllm", "vllm"},
    {"sglang", "sglang"},
    {"trtllm", "trtllm"},
    {"lmdeploy", "lmdeploy"},
    {"hf-", "transformers"},
}};

}  // namespace

std::optional<std::string> missing_in_stack(const std::string& method, const Stack& stack) {
  const auto found = std::find_if(kSoftware.begin(), kSoftware.end(), [&](const auto& one) {
    return stack.name.starts_with(one.first);
  });
  if (found == kSoftware.end()) return std::nullopt;
  const std::string_view software = found->second;
  const std::vector<Availability> available = availability_of(method);
  // kvpress and released code run on transformers.
  const bool has = std::any_of(available.begin(), available.end(), [&](const Availability& one) {
    return one.software == software || (software == "transformers" &&
                                        (one.software == "kvpress" || one.software == "research"));
  });
  if (has) return std::nullopt;
  return fmt::format("{} has no {}; numbers assume that it is built in ({})",
                     software_title(software), method,
                     available.empty() ? std::string{"no released software is known to have it"}
                                       : "available in " + availability_titles(available));
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
