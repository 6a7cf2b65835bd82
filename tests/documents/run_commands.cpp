// run_commands FILE.md SCRATCH: runs every command of a document, in order, and fails if one fails.
// The folder looks like a clone of the project with a user's files in it (fixtures/). Blocks that a
// page marks as printed (<!-- printed -->) are compared with the output of its commands. Commands
// that would change this machine or need another one are skipped by name, with a reason.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <sys/wait.h>

#include "tests/documents/markdown.hpp"

namespace {

namespace fs = std::filesystem;
using namespace kvsim::test;

struct Excuse {
  std::string_view prefix;
  std::string_view reason;
};

constexpr std::array excuses{
    Excuse{"./kv explorer",
           "compiles with Emscripten for minutes; ./kv test-full builds the same page "
           "and uses it in a browser"},
    Excuse{"./kv ", "is what runs this test"},
    Excuse{"apt-get ", "installs packages"},
    Excuse{"sudo ", "installs packages"},
    Excuse{"cmake ", "builds; the install tests do"},
    Excuse{"ctest ", "runs this test"},
    Excuse{"cpack ", "packs; the install tests do"},
    Excuse{"git ", "needs a network or a remote"},
    Excuse{"docker ", "needs a container engine"},
    Excuse{"vcpkg ", "needs a network"},
    Excuse{"pip ", "needs a network"},
    Excuse{"npm ", "needs a network"},
    Excuse{"mkdocs ", "needs MkDocs; a separate test builds the site"},
    Excuse{"mpirun ", "needs as many ranks as a cluster; tests of sweeps run two"},
    Excuse{"srun ", "needs Slurm"},
    Excuse{"gpus=(", "is part of a Slurm script"},
    Excuse{"kvsim sweep big.json --vary \"/gpu=${gpus", "is part of a Slurm script"},
    Excuse{"kvsim calibrate --device", "needs a GPU"},
    Excuse{"kvsim validate kernels --device cuda", "needs a GPU"},
    Excuse{"validation/run_gpu.sh", "needs a GPU"},
    Excuse{"python3 ", "needs packages of Python; separate tests run these"},
    Excuse{"PYTHONPATH=", "needs the Python module; separate tests run it"},
    Excuse{"kvsim explorer ", "needs Emscripten; separate tests run it"},
    Excuse{"build/explorer/", "needs Emscripten; separate tests run it"},
    Excuse{"xdg-open ", "needs a desktop"},
};

std::optional<std::string_view> excuse_for(std::string_view command) {
  for (const Excuse& excuse : excuses) {
    if (command.starts_with(excuse.prefix)) return excuse.reason;
  }
  return std::nullopt;
}

/// Files for `document`: fixtures/, and over them fixtures_NAME/ if it exists.
void prepare(const fs::path& document, const fs::path& scratch) {
  const fs::path root{KVSIM_SOURCE_DIR};
  const fs::path own = root / fmt::format("tests/documents/fixtures_{}", document.stem().string());
  fs::remove_all(scratch);
  fs::create_directories(scratch);
  // Copies, not links: a command may write next to the files that it reads.
  for (const char* folder : {"scenarios", "traces/samples", "examples/own_method"}) {
    fs::create_directories((scratch / folder).parent_path());
    fs::copy(root / folder, scratch / folder, fs::copy_options::recursive);
  }
  fs::create_directories(scratch / "sim/own");
  fs::copy_file(root / "sim/own/kvsim_method.h", scratch / "sim/own/kvsim_method.h");
  fs::copy(root / "tests/documents/fixtures", scratch, fs::copy_options::recursive);
  fs::copy_file(root / "traces/samples/books-treasure-512.safetensors",
                scratch / "trace.safetensors");
  if (fs::exists(own)) {
    fs::copy(own, scratch, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  fs::create_directories(scratch / "bin");
  fs::create_symlink(KVSIM_PROGRAM, scratch / "bin/kvsim");
  fs::create_directories(scratch / "build/release");
  fs::create_symlink(KVSIM_PROGRAM, scratch / "build/release/kvsim");
}

/// The exit status of `command`, run in `folder`.
int type(const std::string& command, const fs::path& folder) {
  const std::string line =
      fmt::format("cd '{}' && PATH=\"$PWD/bin:$PATH\" && {{ {}\n}} > last-output 2>&1",
                  folder.string(), command);
  const int status = std::system(line.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

std::string last_output(const fs::path& folder) {
  std::ifstream in{folder / "last-output"};
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

/// Number of blocks marked as printed that no command printed. `outputs`: of the commands run, by
/// line.
int check_printed(const fs::path& document, const std::vector<DocumentLine>& lines,
                  const std::map<std::size_t, std::string>& outputs) {
  int failed = 0;
  for (const PrintedBlock& block : printed_blocks(lines)) {
    const auto from = outputs.lower_bound(block.shell_from);
    const auto to = outputs.upper_bound(block.shell_to);
    const bool held = std::any_of(
        from, to, [&](const auto& output) { return is_part_of_output(block.text, output.second); });
    fmt::print("{}: the block printed at line {}\n", held ? "ok" : "FAILED", block.number);
    if (held) continue;
    ++failed;
    fmt::print("  {}:{}: no command of the block above it prints this; they print:\n",
               document.filename().string(), block.number);
    for (auto at = from; at != to; ++at) fmt::print("{}\n", at->second);
  }
  return failed;
}

int run(const fs::path& document, const fs::path& scratch) {
  prepare(document, scratch);
  int failed = 0;
  std::size_t typed = 0;
  const std::vector<DocumentLine> lines = read_document(document);
  std::map<std::size_t, std::string> outputs;
  for (const DocumentLine& command : shell_commands(lines)) {
    if (command.text.starts_with("#!")) continue;
    if (const auto reason = excuse_for(command.text)) {
      fmt::print("passed over: {}  ({})\n", command.text, *reason);
      continue;
    }
    const int status = type(command.text, scratch);
    ++typed;
    outputs[command.number] = last_output(scratch);
    fmt::print("{}: {}\n", status == 0 ? "ok" : "FAILED", command.text);
    if (status == 0) continue;
    ++failed;
    fmt::print("  {}:{}: exit status {}; it printed:\n", document.filename().string(),
               command.number, status);
    std::fflush(stdout);
    const std::string show = fmt::format("tail -n 8 '{}'", (scratch / "last-output").string());
    if (std::system(show.c_str()) != 0) fmt::print("  (nothing)\n");
  }
  fmt::print("{} commands of {} typed, {} failed\n", typed, document.filename().string(), failed);
  failed += check_printed(document, lines, outputs);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: run_commands FILE.md SCRATCH\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "run_commands: {}\n", error.what());
    return 1;
  }
}
