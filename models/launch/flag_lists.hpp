#pragma once

// The arguments of engines' servers by version: data/*.json, each list with its source.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/stack/engine_defaults.hpp"

namespace kvsim {

/// Value type of a flag.
enum class FlagType : std::uint8_t {
  kFlag,      // nothing
  kSwitch,    // nothing; --no-NAME negates it
  kInt,       // an integer
  kCount,     // an integer, also 32K (x 1,024), 32k (x 1,000), "auto"
  kFloat,     // a number
  kText,      // anything
  kJson,      // JSON; for vLLM also --NAME.key VALUE
  kList,      // one or more words
  kOptional,  // a word or nothing
};

/// One argument, as in one or more of the engine's lists.
struct EngineFlag {
  std::string name;               // "--tensor-parallel-size"
  std::vector<std::string> also;  // other spellings: "-tp"
  FlagType type = FlagType::kText;
  std::string default_value;        // as in the list; empty: not stated
  std::vector<std::string> values;  // permitted values; empty: any
  std::size_t first = 0, last = 0;  // range of lists that contain it
};

/// A server's arguments at one version.
struct FlagListVersion {
  std::string version;  // "0.11": this release and later ones
  EngineVersion parsed{};
  std::string source;
};

/// All known arguments of one engine's server.
struct EngineFlags {
  std::string engine;                                   // "vLLM"
  std::string stack;                                    // of the catalogue: "vllm"
  std::vector<std::string> program;                     // {"vllm", "serve"}
  std::vector<std::vector<std::string>> also_programs;  // other ways to start it
  bool model_is_positional = false;
  std::string model_flag;      // "--model"; empty: none
  bool dashes = false;         // "_" in a long flag counts as "-"
  bool abbreviations = false;  // a unique prefix of a long flag is accepted
  std::vector<FlagListVersion> lists;
  std::vector<EngineFlag> flags;

  /// Returns the flag that every list around `version` has with this spelling: both lists if the
  /// version is between two. nullptr: not certain.
  [[nodiscard]] const EngineFlag* find_certain(EngineVersion version, std::string_view flag) const;
  /// Returns the flag of one of these lists, the nearest first. nullptr: in neither.
  [[nodiscard]] const EngineFlag* find_possible(EngineVersion version, std::string_view flag) const;
  /// Returns the spellings in the lists around `version`.
  [[nodiscard]] std::vector<std::string> spellings(EngineVersion version) const;
  /// Returns the versions whose lists have `flag`: "0.11 and later"; empty if there are none.
  [[nodiscard]] std::string versions_of(std::string_view flag) const;
  /// Returns the lists around `version`: the last at or before it, and the first at or after it.
  [[nodiscard]] std::pair<std::size_t, std::size_t> around(EngineVersion version) const;
  /// Whether `version` is before the first list.
  [[nodiscard]] bool is_too_old(EngineVersion version) const;
};

/// Reads one data file. Throws InputError.
[[nodiscard]] EngineFlags read_engine_flags(const Field& field);

/// The flag lists of vLLM, SGLang and TensorRT-LLM.
[[nodiscard]] const std::vector<EngineFlags>& builtin_engine_flags();
/// Returns the list for a stack ("vllm-v0" is vLLM); nullptr if it has no server with known
/// arguments.
[[nodiscard]] const EngineFlags* find_engine_flags(std::string_view stack);

}  // namespace kvsim
