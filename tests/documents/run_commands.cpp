// run_commands FILE.md SCRATCH: types every command of a document, in order, in a folder that looks
// like a clone of the project with a user's files in it (fixtures/), and fails where one does.
// Commands that would change this machine or need another one are passed over by name, with a
// reason.

#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
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
    Excuse{"mkdocs ", "needs MkDocs; a test of its own builds the site"},
    Excuse{"mpirun ", "needs as many ranks as a cluster; tests of sweeps run two"},
    Excuse{"srun ", "needs Slurm"},
    Excuse{"gpus=(", "is part of a Slurm script"},
    Excuse{"kvsim sweep big.json --vary \"/gpu=${gpus", "is part of a Slurm script"},
    Excuse{"kvsim calibrate --device", "needs a GPU"},
    Excuse{"kvsim validate kernels --device cuda", "needs a GPU"},
    Excuse{"validation/run_gpu.sh", "needs a GPU"},
    Excuse{"python3 ", "needs packages of Python; tests of its own run these"},
    Excuse{"PYTHONPATH=", "needs the Python module; tests of its own run it"},
    Excuse{"kvsim explorer ", "needs Emscripten; tests of its own run it"},
    Excuse{"build/explorer/", "needs Emscripten; tests of its own run it"},
    Excuse{"xdg-open ", "needs a desktop"},
};

std::optional<std::string_view> excuse_for(std::string_view command) {
  for (const Excuse& excuse : excuses) {
    if (command.starts_with(excuse.prefix)) return excuse.reason;
  }
  return std::nullopt;
}

/// What `document` finds beside it: fixtures/, and over them fixtures_NAME/ where there is one.
void prepare(const fs::path& document, const fs::path& scratch) {
  const fs::path root{KVSIM_SOURCE_DIR};
  const fs::path own = root / fmt::format("tests/documents/fixtures_{}", document.stem().string());
  fs::remove_all(scratch);
  fs::create_directories(scratch);
  // Copies, not links: a command may write beside what it reads.
  for (const char* folder : {"scenarios", "traces/samples"}) {
    fs::create_directories((scratch / folder).parent_path());
    fs::copy(root / folder, scratch / folder, fs::copy_options::recursive);
  }
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

/// The exit status of `command`, typed in `folder`.
int type(const std::string& command, const fs::path& folder) {
  const std::string line =
      fmt::format("cd '{}' && PATH=\"$PWD/bin:$PATH\" && {{ {}\n}} > last-output 2>&1",
                  folder.string(), command);
  const int status = std::system(line.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

int run(const fs::path& document, const fs::path& scratch) {
  prepare(document, scratch);
  int failed = 0;
  std::size_t typed = 0;
  for (const DocumentLine& command : shell_commands(read_document(document))) {
    if (command.text.starts_with("#!")) continue;
    if (const auto reason = excuse_for(command.text)) {
      fmt::print("passed over: {}  ({})\n", command.text, *reason);
      continue;
    }
    const int status = type(command.text, scratch);
    ++typed;
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
