// The floors of docs/architecture.md as data, and a parser of every #include that checks the tree
// against them.

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/check.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

struct Folder {
  std::string_view name;
  std::vector<std::string_view> may_include;  // in addition to itself
  /// Its sub-folders, lowest first; "" is the folder's own files. Each may include itself and the
  /// sub-folders before it. Empty: the folder has no sub-folders.
  std::vector<std::string_view> rooms{};
};

/// Lowest floor first. A folder may include only itself and the folders listed here.
const std::vector<Folder>& floors() {
  static const std::vector<Folder> table = [] {
    using Names = std::vector<std::string_view>;
    const auto join = [](std::initializer_list<Names> parts) {
      Names all;
      for (const Names& part : parts) all.insert(all.end(), part.begin(), part.end());
      return all;
    };
    const Names basics{"models/units", "models/json", "models/math"};
    const Names described = join({basics, {"models/llm", "models/gpu"}});
    const Names floor1 = join({described, {"traces", "traces/requests"}});
    const Names floor2 = join({floor1, {"models/methods", "models/stack", "models/cost"}});
    const Names floor3 =
        join({floor2, {"sim/metrics", "sim/engine", "sim/memory", "sim/network", "sim/own"}});
    const Names all3 = join(
        {floor3,
         {"sim/batch", "sim/replay", "sim/decoder", "sim/serve", "sim/bench", "sim/scenario"}});
    const Names floor4 = join({all3, {"sim/plan", "sim/sweep", "sim/run"}});
    return std::vector<Folder>{
        // 1: descriptions
        {"models/units", {}},
        {"models/json", {"models/units"}},
        {"models/math", {"models/units"}, {"", "tiles", "attention", "low_rank", "merging"}},
        {"models/quality", {"models/units", "models/json"}},
        {"models/llm", join({basics, {"models/gpu"}}), {"layer", "", "hf", "hf/family"}},
        {"models/gpu", join({basics, {"models/llm"}})},
        {"traces", described, {"", "synthetic"}},
        {"traces/requests", basics, {"", "reuse", "formats", "generate"}},
        // 2: methods do not read traces: they receive views of the vectors
        {"models/methods",
         described,
         {"view", "", "budget", "learn", "select", "select/attention", "select/keys",
          "select/learned", "merge", "read", "share", "store", "tier", "prefill", "resolve",
          "catalogue", "session"}},
        {"models/stack", floor1},
        {"models/launch", {"models/units", "models/json", "models/stack"}},
        {"models/cost",
         join({floor1, {"models/methods", "models/stack"}}),
         {"residuals", "kernels", "kernels/forms", "", "rates", "layer", "compiled", "iteration"}},
        // 3: simulation
        {"sim/metrics", {"models/units"}},
        {"sim/own", join({basics, {"models/methods"}})},
        {"sim/engine", floor2},
        {"sim/memory", join({floor2, {"sim/engine"}})},
        {"sim/network", floor2},
        {"sim/replay", floor3},
        {"sim/decoder", join({floor3, {"sim/replay"}})},
        {"sim/batch", floor3, {"account", "", "point"}},
        {"sim/serve",
         join({floor3, {"sim/batch"}}),
         {"", "cache", "schedulers", "engine", "service", "account"}},
        {"sim/scenario",
         join({floor3, {"sim/batch", "sim/replay", "sim/serve"}}),
         {"fields", "", "points", "read"}},
        {"sim/bench", join({floor3, {"sim/batch", "sim/serve"}})},
        // 4: searches over simulations
        {"sim/plan", all3},
        {"sim/sweep", join({all3, {"sim/plan"}})},
        {"sim/run", all3},
        {"sim/launch", join({all3, {"models/launch"}})},
        // 5: the program
        {"sim/report/html", {"models/units", "models/json"}},
        {"sim/report",
         join({floor4, {"models/launch", "sim/launch", "sim/report/html"}}),
         {"text", "figure", "files", "chart", "catalogue", "batch", "folder", "plan", "launch",
          "replay", "replay_sweep", "service", "run", "sweep"}},
        {"sim/python", join({floor4, {"sim/report"}})},
        {"sim/explorer", join({floor4, {"sim/launch", "sim/report"}})},
        {"sim/explorer/wasm", join({floor4, {"sim/report", "sim/explorer"}})},
        {"sim/explorer/page",
         {"models/units", "models/json", "sim/report", "sim/report/html", "sim/explorer"}},
        {"sim/cli",
         join({floor4,
               {"models/launch", "models/quality", "sim/launch", "sim/report", "sim/report/html",
                "sim/explorer", "sim/explorer/page", "validation", "validation/device",
                "validation/e2e", "kernels", "kernels/cuda_sim", "kernels/suite"}}),
         {"process", "options", "launch", "requests", "explain", "validate", "validate/served", "",
          "calibrate"}},
        // next to the floors
        {"kernels/cuda_sim", {"models/units", "models/math"}},
        {"kernels/shapes", {"models/units"}},
        {"kernels",
         {"models/units", "models/math", "kernels/cuda_sim", "kernels/shapes"},
         {"", "basic", "decode", "device", "select", "merge", "quantise", "score"}},
        {"kernels/suite",
         {"models/units", "models/math", "kernels", "kernels/cuda_sim"},
         {"bench", "library", "cases", ""}},
        {"validation",
         join({floor4, {"kernels", "kernels/cuda_sim"}}),
         {"allocator", "measured", "published", "served", "residuals", "torch"}},
        {"validation/device",
         join({floor4, {"kernels", "kernels/cuda_sim", "kernels/suite", "validation"}})},
        {"validation/e2e",
         join({floor4, {"kernels", "kernels/cuda_sim", "kernels/suite", "validation"}})},
    };
  }();
  return table;
}

/// The row of `path` ("models/units/error.hpp"); nullptr if there is none.
const Folder* folder_of(std::string_view path) {
  const Folder* best = nullptr;
  for (const Folder& folder : floors()) {
    const bool inside = path.starts_with(folder.name) && path.size() > folder.name.size() &&
                        path[folder.name.size()] == '/';
    if (inside && (best == nullptr || folder.name.size() > best->name.size())) best = &folder;
  }
  return best;
}

/// Index in folder.rooms of the sub-folder of `path`, which is in `folder`; nullopt: not listed.
std::optional<std::size_t> room_of(const Folder& folder, std::string_view path) {
  const std::string_view inside = path.substr(folder.name.size() + 1);
  const std::size_t end = inside.rfind('/');
  const std::string_view room = end == std::string_view::npos ? "" : inside.substr(0, end);
  const auto found = std::find(folder.rooms.begin(), folder.rooms.end(), room);
  if (found == folder.rooms.end()) return std::nullopt;
  return static_cast<std::size_t>(found - folder.rooms.begin());
}

/// Paths in `#include "…"` lines of `text`. Lines in comments and strings are not distinguished,
/// because they do not contain such lines.
std::vector<std::string> quoted_includes(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto skip_blanks = [&] {
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    };
    skip_blanks();
    if (!line.starts_with('#')) continue;
    line.remove_prefix(1);
    skip_blanks();
    if (!line.starts_with("include")) continue;
    line.remove_prefix(7);
    skip_blanks();
    if (!line.starts_with('"')) continue;
    line.remove_prefix(1);
    names.emplace_back(line.substr(0, line.find('"')));
  }
  return names;
}

/// Violations in the file at `path` (relative to the root), one line each.
std::vector<std::string> violations(std::string_view path, std::string_view text) {
  std::vector<std::string> out;
  const Folder* mine = folder_of(path);
  if (mine == nullptr) return {fmt::format("{}: is in no folder of the table", path)};
  const bool has_rooms = !mine->rooms.empty();
  const std::optional<std::size_t> room = has_rooms ? room_of(*mine, path) : std::nullopt;
  if (has_rooms && !room) return {fmt::format("{}: is in no sub-folder of {}", path, mine->name)};
  for (const std::string& name : quoted_includes(text)) {
    const Folder* theirs = folder_of(name);
    if (theirs == nullptr) {
      out.push_back(fmt::format("{}: \"{}\" is not written from the root", path, name));
    } else if (theirs != mine && std::find(mine->may_include.begin(), mine->may_include.end(),
                                           theirs->name) == mine->may_include.end()) {
      out.push_back(
          fmt::format("{}: {} must not include {} (\"{}\")", path, mine->name, theirs->name, name));
    } else if (theirs == mine && has_rooms && room_of(*mine, name).value_or(0) > *room) {
      out.push_back(fmt::format("{}: \"{}\" is in a higher room of {}", path, name, mine->name));
    }
  }
  return out;
}

const fs::path kRoot{KVSIM_SOURCE_DIR};

struct SourceFile {
  std::string path;  // from the root
  std::string text;
};

/// Sources in the given folders of the root, sorted by path.
std::vector<SourceFile> sources(std::initializer_list<const char*> folders) {
  constexpr std::array<std::string_view, 5> kExtensions{".hpp", ".cpp", ".cu", ".cuh", ".h"};
  std::vector<SourceFile> files;
  for (const char* folder : folders) {
    if (!fs::exists(kRoot / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator{kRoot / folder}) {
      const std::string extension = entry.path().extension().string();
      if (!entry.is_regular_file() ||
          std::find(kExtensions.begin(), kExtensions.end(), extension) == kExtensions.end()) {
        continue;
      }
      std::ifstream in{entry.path(), std::ios::binary};
      files.push_back({entry.path().lexically_relative(kRoot).generic_string(),
                       {std::istreambuf_iterator<char>{in}, {}}});
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

TEST_CASE("no include points to a higher or sibling floor") {
  const auto files = sources({"models", "sim", "traces", "kernels", "validation"});
  CHECK(files.size() > 20);  // the tree was found
  for (const SourceFile& file : files) {
    for (const std::string& complaint : violations(file.path, file.text)) FAIL_CHECK(complaint);
  }
}

TEST_CASE("an inserted violation is detected") {
  CHECK(violations("models/units/a.hpp", "#include <vector>\n#include \"models/units/b.hpp\"\n")
            .empty());
  const auto one = [](std::string_view path, std::string_view text) {
    const auto found = violations(path, text);
    return found.size() == 1 ? found.front() : fmt::format("{} complaints", found.size());
  };
  CHECK(
      one("models/units/a.hpp", "#include \"models/json/field.hpp\"") ==
      "models/units/a.hpp: models/units must not include models/json (\"models/json/field.hpp\")");
  CHECK(one("models/methods/select/h2o.cpp", "  #  include \"traces/trace.hpp\"\n") ==
        "models/methods/select/h2o.cpp: models/methods must not include traces "
        "(\"traces/trace.hpp\")");
  CHECK(one("sim/report/text/a.cpp", "#include \"sim/cli/main.hpp\"") ==
        "sim/report/text/a.cpp: sim/report must not include sim/cli (\"sim/cli/main.hpp\")");
  CHECK(one("sim/replay/a.cpp", "#include \"sim/batch/static_run.hpp\"").find("must not") !=
        std::string::npos);
  CHECK(one("kernels/a.cu", "#include \"models/json/field.hpp\"").find("must not") !=
        std::string::npos);
  CHECK(
      one("validation/measured/a.cpp", "#include \"sim/report/text/table.hpp\"").find("must not") !=
      std::string::npos);
  CHECK(one("sim/serve/a.cpp", "#include \"static_run.hpp\"") ==
        "sim/serve/a.cpp: \"static_run.hpp\" is not written from the root");
  CHECK(one("sim/serve/a.cpp", "#include \"../memory/x.hpp\"").find("from the root") !=
        std::string::npos);
  CHECK(one("models/unitsx/a.hpp", "") == "models/unitsx/a.hpp: is in no folder of the table");
  // Includes within a folder.
  CHECK(violations("sim/serve/engine/a.cpp", "#include \"sim/serve/cache/x.hpp\"").empty());
  CHECK(one("sim/serve/cache/a.cpp", "#include \"sim/serve/engine/x.hpp\"") ==
        "sim/serve/cache/a.cpp: \"sim/serve/engine/x.hpp\" is in a higher room of sim/serve");
  CHECK(one("sim/serve/serve_spec.cpp", "#include \"sim/serve/cache/x.hpp\"").find("higher room") !=
        std::string::npos);
  CHECK(one("sim/serve/elsewhere/a.cpp", "") ==
        "sim/serve/elsewhere/a.cpp: is in no sub-folder of sim/serve");
}

TEST_CASE("a folder with many files has subfolders") {
  constexpr auto kMaxFiles = 26;
  std::map<std::string, int> counts;
  for (const SourceFile& file :
       sources({"models", "sim", "traces", "kernels", "validation", "tests"})) {
    ++counts[file.path.substr(0, file.path.rfind('/'))];
  }
  for (const auto& [folder, n] : counts) {
    INFO(folder, ": ", n, " source files");
    CHECK(n <= kMaxFiles);
  }
}

TEST_CASE("the table has no mutual dependencies except between siblings of a floor") {
  for (const Folder& a : floors()) {
    for (const std::string_view name : a.may_include) {
      const Folder* b = folder_of(fmt::format("{}/x", name));
      REQUIRE(b != nullptr);
      const bool back =
          std::find(b->may_include.begin(), b->may_include.end(), a.name) != b->may_include.end();
      const bool siblings = a.name.starts_with("models/") &&
                            (a.name == "models/llm" || a.name == "models/gpu") &&
                            (b->name == "models/llm" || b->name == "models/gpu");
      INFO(a.name, " and ", b->name);
      CHECK((!back || siblings));
    }
  }
}

TEST_CASE("headers are guarded and files stay small") {
  constexpr auto kMaxLines = 600;
  for (const SourceFile& file : sources({"models", "sim", "traces", "kernels", "validation"})) {
    INFO(file.path);
    if (file.path.ends_with(".hpp") || file.path.ends_with(".cuh")) {
      CHECK(file.text.find("#pragma once") != std::string::npos);
    }
    CHECK(std::count(file.text.begin(), file.text.end(), '\n') <= kMaxLines);
  }
}

TEST_CASE("code compiled to WebAssembly uses neither std::ranges nor std::views") {
  // libc++ 14, which Debian's Emscripten uses, has no algorithms in std::ranges and no std::views.
  // Only the command line may use them.
  for (const SourceFile& file : sources({"models", "sim", "traces"})) {
    if (file.path.starts_with("sim/cli/")) continue;
    INFO(file.path);
    CHECK(file.text.find("std::ranges::") == std::string::npos);
    CHECK(file.text.find("std::views::") == std::string::npos);
  }
}

TEST_CASE("comments contain no unfinished work") {
  const std::array<std::string, 3> words{std::string{"TO"} + "DO", std::string{"FIX"} + "ME",
                                         std::string{"XX"} + "X"};
  for (const SourceFile& file :
       sources({"models", "sim", "traces", "kernels", "validation", "tests"})) {
    INFO(file.path);
    for (const std::string& word : words) CHECK(file.text.find(word) == std::string::npos);
  }
}

}  // namespace
}  // namespace kvsim
