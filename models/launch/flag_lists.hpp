#pragma once

// The arguments of engines' servers, by version: data/*.json, each list with its source.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/stack/engine_defaults.hpp"

namespace kvsim {

/// What a flag takes.
enum class FlagType : std::uint8_t {
  kFlag,      // nothing
  kSwitch,    // nothing; --no-NAME is its opposite
  kInt,       // an integer
  kCount,     // an integer, also 32K (x 1,024), 32k (x 1,000), "auto"
  kFloat,     // a number
  kText,      // anything
  kJson,      // JSON; of vLLM also --NAME.key VALUE
  kList,      // one or more words
  kOptional,  // a word or nothing
};

/// One argument, as one or more of the engine's lists have it.
struct EngineFlag {
  std::string name;               // "--tensor-parallel-size"
  std::vector<std::string> also;  // its other spellings: "-tp"
  FlagType type = FlagType::kText;
  std::string default_value;        // as the list states it; empty: none is stated
  std::vector<std::string> values;  // the values that it takes; empty: any
  std::size_t first = 0, last = 0;  // lists that have it
};

/// A server's arguments at one version.
struct FlagListVersion {
  std::string version;  // "0.11": of this release and later ones
  EngineVersion parsed{};
  std::string source;
};

/// All that is known of one engine's server.
struct EngineFlags {
  std::string engine;                                   // "vLLM"
  std::string stack;                                    // of the catalogue: "vllm"
  std::vector<std::string> program;                     // {"vllm", "serve"}
  std::vector<std::vector<std::string>> also_programs;  // other ways to start it
  bool model_is_positional = false;
  std::string model_flag;      // "--model"; empty: there is none
  bool dashes = false;         // "_" in a long flag counts as "-"
  bool abbreviations = false;  // the unique beginning of a long flag is that flag
  std::vector<FlagListVersion> lists;
  std::vector<EngineFlag> flags;

  /// The flags that every list around `version` has with this spelling: of a version between two
  /// lists both. nullptr: not certain.
  [[nodiscard]] const EngineFlag* find_certain(EngineVersion version, std::string_view flag) const;
  /// The flag of one of these lists, the nearest first. nullptr: neither has it.
  [[nodiscard]] const EngineFlag* find_possible(EngineVersion version, std::string_view flag) const;
  /// The spellings that the lists around `version` have.
  [[nodiscard]] std::vector<std::string> spellings(EngineVersion version) const;
  /// The versions of the lists that have `flag`: "0.11 and later"; empty: none has it.
  [[nodiscard]] std::string versions_of(std::string_view flag) const;
  /// Lists around `version`: the last at or before it, and the first at or after it.
  [[nodiscard]] std::pair<std::size_t, std::size_t> around(EngineVersion version) const;
  /// Whether `version` is before the first list.
  [[nodiscard]] bool is_too_old(EngineVersion version) const;
};

/// Reads one file of data. Errors: InputError.
[[nodiscard]] EngineFlags read_engine_flags(const Field& field);

/// Those of vLLM, SGLang and TensorRT-LLM.
[[nodiscard]] const std::vector<EngineFlags>& builtin_engine_flags();
/// Of the stack with that name ("vllm-v0" is vLLM); nullptr: it is no server whose arguments are
/// known.
[[nodiscard]] const EngineFlags* find_engine_flags(std::string_view stack);

}  // namespace kvsim
