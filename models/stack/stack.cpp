#include "models/stack/stack.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "models/json/embedded.hpp"
#include "models/units/error.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> stack_profiles();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

constexpr Bytes kPyTorchBlock = 512_B;

/// The enumerator whose word stands at `key`; words are in the order of the enumeration.
template <class Enum, std::size_t N>
Enum read_enum(const Field& profile, std::string_view key,
               const std::array<const char*, N>& words) {
  const std::vector<std::string> known{words.begin(), words.end()};
  const std::string word = profile.at(key).choice(known);
  return static_cast<Enum>(std::find(known.begin(), known.end(), word) - known.begin());
}

std::vector<Stack> read_profiles() {
  std::vector<Stack> stacks;
  for (const auto& file : embedded::stack_profiles()) {
    const std::string name{file.name};
    stacks.push_back(read_stack(Field::parse(file.text, "stacks/" + name + ".json"), name));
  }
  return stacks;
}

}  // namespace

Bytes charged_bytes(const Stack& stack, Bytes n) {
  return stack.rounds_allocations ? round_up(n, kPyTorchBlock) : n;
}

Stack read_stack(const Field& profile, std::string name) {
  constexpr std::array kKeys{
      "summary",         "growth",           "attention",          "logits",      "logits_fp32",
      "keeps_inputs",    "expands_kv_heads", "rounds_allocations", "splits_keys", "norm_launches",
      "rope_launches",   "context",          "host_per_step",      "sources",     "usable_fraction",
      "launch_overhead", "host_per_layer",   "host_per_launch"};
  const std::vector<std::string> keys{kKeys.begin(), kKeys.end()};
  profile.allow_only(keys);

  Stack stack;
  stack.name = std::move(name);
  stack.summary = profile.at("summary").string();
  stack.growth =
      read_enum<CacheGrowth>(profile, "growth", std::array{"static", "exact", "concat_layer"});
  stack.attention = read_enum<AttentionExec>(profile, "attention", std::array{"fused", "eager"});
  stack.logits = read_enum<LogitPositions>(profile, "logits", std::array{"last", "all"});
  stack.logits_fp32 = profile.at("logits_fp32").boolean();
  stack.expands_kv_heads = profile.at("expands_kv_heads").boolean();
  stack.rounds_allocations = profile.at("rounds_allocations").boolean();
  stack.keeps_inputs = profile.at("keeps_inputs").boolean();
  stack.splits_keys = profile.at("splits_keys").boolean();
  stack.norm_launches = static_cast<std::int32_t>(profile.at("norm_launches").integer(1, 100));
  stack.rope_launches = static_cast<std::int32_t>(profile.at("rope_launches").integer(1, 100));
  stack.context = profile.at("context").bytes();
  stack.usable_fraction = profile.at("usable_fraction").number(0.01, 1.0);
  stack.launch_overhead = profile.at("launch_overhead").duration();
  stack.host_per_layer = profile.at("host_per_layer").duration();
  stack.host_per_step = profile.at("host_per_step").duration();
  stack.host_per_launch = profile.at("host_per_launch").duration();
  for (const auto& [key, source] : profile.at("sources").members()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      source.fail(unknown_name("key", key, keys));
    }
    stack.sources[key] = source.string();
  }
  return stack;
}

const std::vector<Stack>& builtin_stacks() {
  static const std::vector<Stack> stacks = read_profiles();
  return stacks;
}

const Stack& find_stack(std::string_view name) {
  std::vector<std::string> known;
  for (const Stack& stack : builtin_stacks()) {
    if (stack.name == name) return stack;
    known.push_back(stack.name);
  }
  throw InputError{unknown_name("stack", name, known)};
}

}  // namespace kvsim
