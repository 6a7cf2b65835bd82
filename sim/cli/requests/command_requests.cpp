// kvsim requests convert and generate: workloads of a serving run.

#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/scenario_values.hpp"
#include "sim/cli/options/workload_options.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "traces/requests/formats/write_requests.hpp"
#include "traces/requests/formats/write_weka.hpp"
#include "traces/requests/generate/workload.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

namespace fs = std::filesystem;

/// Writes agent sessions as files in one folder.
void write_sessions(const Arguments& arguments, const RequestTrace& trace, const fs::path& folder) {
  AtomicFiles files{folder};
  for (const auto& [name, text] : weka_texts(trace)) files.write(name, text);
  files.commit();
  if (arguments.has("quiet")) return;
  write_out(fmt::format("wrote {} ({} requests of {} sessions, layout of weka)\n", folder.string(),
                        with_commas(std::ssize(trace.requests)),
                        with_commas(std::ssize(trace.agent_sessions))));
}

/// Writes `trace` in the layout of --layout, or of the file's extension, and prints the layout.
void write_trace(const Arguments& arguments, const RequestTrace& trace, const fs::path& file) {
  const auto word = arguments.value("layout");
  if (word ? *word == name_of(RequestFormat::kWeka)
           : !trace.agents.empty() && !file.has_extension()) {
    return write_sessions(arguments, trace, file);
  }
  const RequestFormat format = word ? parse_request_format(*word, "--layout")
                               : file.extension() == ".jsonl" ? RequestFormat::kMooncake
                                                              : RequestFormat::kPlain;
  write_file_atomically(file, requests_text(trace, format));
  if (arguments.has("quiet")) return;
  std::string said = fmt::format("wrote {} ({} requests, layout of {})\n", file.string(),
                                 with_commas(std::ssize(trace.requests)), name_of(format));
  const std::vector<std::string> lost = left_out_by(trace, format);
  if (!lost.empty()) said += fmt::format("not in this layout: {}\n", fmt::join(lost, ", "));
  for (const std::string& note : trace.notes) said += fmt::format("note: {}\n", note);
  write_out(said);
}

int run_convert(const Arguments& arguments) {
  arguments.expect_words(2, 2, "the file to read and the file to write");
  std::error_code status;
  if (fs::equivalent(arguments.words()[0], arguments.words()[1], status)) {
    throw InputError{
        fmt::format("{}: is the input file; choose another output file", arguments.words()[1])};
  }
  write_trace(arguments, file_workload(arguments, {arguments.words().front()}),
              arguments.words()[1]);
  return kDone;
}

int run_generate(const Arguments& arguments) {
  arguments.expect_words(0, 1, "at most a file with the generator's description");
  const auto file = arguments.value("out");
  if (!file) throw InputError{"requests generate: expected the file to write: -o FILE"};
  json requests = json::object();
  std::string place = "options";
  fs::path folder;
  if (!arguments.words().empty()) {
    place = arguments.words().front();
    folder = fs::path{place}.parent_path();
    const Field root = Field::read_file(place);
    requests = (root.is_object() && root.has("requests") ? root.at("requests") : root).raw();
    if (!requests.is_object())
      root.expected("an object with the key \"requests\", or what it holds");
  }
  take_drawing_options(arguments, requests);
  take_transforming_options(arguments, requests);
  if (arguments.has("prefix-block")) {
    requests["prefix_block"] = number_or_text(arguments.value("prefix-block").value_or(""));
  }
  // Options of sessions are keys of the nested object "sessions".
  for (const auto& [from, to] : {std::pair{"turns", "turns"}, std::pair{"turn_think", "think"}}) {
    if (!requests.contains(from)) continue;
    requests["sessions"][to] = requests[from];
    requests.erase(from);
  }
  // Sessions in separate files start at 0.
  if (requests.contains("agents") && !requests.contains("arrivals")) {
    requests["arrivals"] = {{"kind", "fixed"}, {"rate", 1}};
  }
  const WorkloadSpec spec = read_workload(Field::wrap(std::move(requests), place), folder);
  write_trace(arguments, make_workload(spec, seed_of(arguments)), *file);
  return kDone;
}

void add_writing(std::vector<Option>& options) {
  options.push_back({"layout", 0, "NAME", false,
                     "layout to write: plain, azure, mooncake or weka (by the extension: .jsonl "
                     "mooncake, none and agents: weka, a folder; else plain)"});
  options.push_back({"quiet", 'q', "", false, "print nothing"});
}

}  // namespace

Command requests_convert_command() {
  std::vector<Option> options = trace_file_options();
  add_writing(options);
  return {.name = "requests convert",
          .summary = "rewrite a request trace: another layout, a part, another rate or lengths",
          .usage = "kvsim requests convert FROM TO [options]",
          .examples =
              "kvsim requests convert scenarios/samples/chat-azure.csv /tmp/hot.csv \\\n"
              "      --rate-scale 2 --limit 100",
          .options = std::move(options),
          .run = run_convert};
}

Command requests_generate_command() {
  std::vector<Option> options;
  options.push_back({"out", 'o', "FILE", false, "the file to write"});
  add_drawing_options(options);
  options.push_back({"prefix-block", 0, "N", false, "tokens per prefix id (64)"});
  add_transforming_options(options);
  options.push_back({"seed", 0, "N", false, "seed (0)"});
  add_writing(options);
  return {.name = "requests generate",
          .summary = "write a synthetic request trace from distributions and a seed",
          .usage = "kvsim requests generate [DESCRIPTION.json] -o FILE [options]",
          .examples =
              "kvsim requests generate -o /tmp/r.csv --arrivals poisson:rate=6 --count 1000 \\\n"
              "      --prompt lognormal:mean=1000,p99=4000 --output uniform:min=1,max=400",
          .options = std::move(options),
          .run = run_generate};
}

}  // namespace kvsim
