#include "sim/cli/launch/launch_job.hpp"

#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/launch/engine_command.hpp"
#include "models/launch/shell_words.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/launch/from_command.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kCommandWidth = 100;

/// The stack of the engine that the command starts: the one in --stack, else the engine's default.
const Stack& stack_of_command(const Arguments& arguments, const EngineFlags& engine,
                              const std::string& place) {
  if (!arguments.has("stack")) return find_stack(engine.stack);
  const std::vector<std::string> names = arguments.list("stack");
  const Stack& stack = find_stack(names.front());
  if (names.size() > 1 || find_engine_flags(stack.name) != &engine) {
    throw InputError{fmt::format("{}: a command of {}", place, engine.engine),
                     fmt::format("--stack {}, with or without its version", engine.stack),
                     fmt::format("\"{}\"", arguments.value("stack").value_or(""))};
  }
  return stack;
}

std::string role_text(const Launch& launch, const LaunchRole& role) {
  const std::string each = fmt::format("{} x {}", role.gpus, launch.gpu);
  if (role.replicas == 1) return fmt::format("{}: {}", role.name, each);
  return fmt::format("{}: {} engines, each on {}", role.name, role.replicas, each);
}

std::string command_text(const NamedLaunch& named) {
  const Launch& launch = named.launch;
  std::string out = fmt::format("# {}\n", clean_text(named.of));
  out += fmt::format("# {} {}{}\n", launch.engine->engine, launch.version,
                     launch.router.empty() ? "" : fmt::format("; {} router", launch.router));
  for (const std::string& note : launch.notes) out += fmt::format("# {}\n", note);
  for (const LaunchRole& role : launch.roles) {
    out += fmt::format("# {}\n", role_text(launch, role));
    for (const LaunchFile& file : role.files) {
      out += fmt::format("cat > {} <<'EOF'\n{}EOF\n", file.name, file.text);
    }
    out += shell_command(role.words, kCommandWidth) + "\n";
  }
  return out;
}

}  // namespace

Arguments with_command_options(Arguments arguments) {
  const auto text = arguments.value("from-command");
  if (!text) return arguments;
  const std::string place = arguments.typed("from-command");
  const std::vector<std::string> words = split_shell_words(*text, place);
  const EngineFlags* engine = engine_of_command(words);
  if (engine == nullptr) (void)parse_engine_command(words, {}, place);  // throws InputError
  const Stack& stack = stack_of_command(arguments, *engine, place);
  const EngineVersion version = parse_engine_version(stack.version).value_or(EngineVersion{});
  const EngineCommand command = parse_engine_command(words, version, place);
  CommandOptions options = options_of_command(command, arguments.has("rate"), place);
  arguments.set_default("stack", stack.name);
  std::set<std::string> replaced;
  for (auto& [name, value] : options.options) {
    const bool repeats = name == "set";
    if (!arguments.set_default(name, value, repeats) && !repeats) replaced.insert(name);
  }
  if (arguments.has("quiet")) return arguments;
  for (const std::string& name : replaced) {
    options.notes.push_back(fmt::format("{} replaces the command's", arguments.typed(name)));
  }
  for (const std::string& note : options.notes) {
    write_err(fmt::format("kvsim: note: {}: {}\n", place, clean_text(note)));
  }
  return arguments;
}

bool asks_for_launch(const Arguments& arguments) {
  return arguments.has("print-command") || arguments.has("manifest");
}

void write_launches(const Arguments& arguments, const std::vector<NamedLaunch>& launches) {
  if (const auto word = arguments.value("manifest")) {
    write_out(launch_manifest(launches, *word, arguments.typed("manifest")));
    return;
  }
  if (arguments.has("json")) {
    write_out(to_file_text(launch_document(launches)));
    return;
  }
  std::string out;
  for (const NamedLaunch& one : launches) {
    out += fmt::format("{}{}", out.empty() ? "" : "\n", command_text(one));
  }
  write_out(out);
}

}  // namespace kvsim
