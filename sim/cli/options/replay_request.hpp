#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/methods/method.hpp"
#include "sim/cli/options/arguments.hpp"
#include "sim/replay/replay.hpp"
#include "sim/scenario/fields/method_field.hpp"

namespace kvsim {

// Options of commands that replay traces: --method, --budget, --param, --split, --threads, --seed.

/// The methods of --method; "all" means the whole catalogue.
struct NamedMethods {
  std::vector<std::string> names;         // in the requested order, each once
  std::set<std::string> whole_catalogue;  // names added by "all"
};
/// Errors: InputError for a name given twice, and for a method file that cannot be loaded.
[[nodiscard]] NamedMethods read_names(const Arguments& arguments);

/// Errors: InputError for an invalid budget, and for one given twice.
[[nodiscard]] std::vector<Budget> read_budgets(const Arguments& arguments,
                                               SmallCounts small = SmallCounts::kAllowed);

/// Converts a word of the command line to true, false, an integer, a number, or a string.
[[nodiscard]] ParamValue param_value(const std::string& text);

/// A word of the form NAME=TEXT.
struct NamedText {
  std::string name, text;
};
/// Errors: InputError "--OPTION: expected `wanted`, got …" unless there is a name and a "=".
[[nodiscard]] NamedText split_named(std::string_view option, std::string_view wanted,
                                    const std::string& word);

/// Errors: InputError for a parameter given twice.
[[nodiscard]] Params read_params(const Arguments& arguments);

/// Whether the method called `name` may have `param`: false for a preset that does not list it.
/// Compositions are checked by make_method.
[[nodiscard]] bool may_take(const std::string& name, const std::string& param);
/// Errors: InputError "--OPTION: unknown parameter …" with the nearest, if no method of `names` may
/// have `param`.
void refuse_unless_taken(std::string_view option, const std::string& param,
                         const std::vector<std::string>& names);

/// --method-lib, for commands with --method.
[[nodiscard]] Option method_lib_option();
/// Loads the libraries of --method-lib; returns the file of each method by name.
std::map<std::string, std::string> load_method_libs(const Arguments& arguments);
/// --split, for commands that replay.
[[nodiscard]] Option split_option();
/// --memory, for read_replay_options.
[[nodiscard]] Option memory_option();
/// The requested threads, seed and split; otherwise the defaults of ReplayOptions.
[[nodiscard]] ReplayOptions read_replay_options(const Arguments& arguments);

/// Files of --trace. Errors: InputError "COMMAND: expected --trace FILE", and for a file given
/// twice.
[[nodiscard]] std::vector<std::string> read_traces(const Arguments& arguments,
                                                   std::string_view command);

}  // namespace kvsim
