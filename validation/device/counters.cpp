#include "validation/device/counters.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <unistd.h>

#include "validation/device/apart.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// The folders of PATH, then those of CUDA.
std::vector<fs::path> program_folders() {
  std::vector<fs::path> folders;
  if (const char* path = std::getenv("PATH")) {
    const std::string_view all{path};
    for (std::size_t begin = 0; begin <= all.size();) {
      const std::size_t end = std::min(all.find(':', begin), all.size());
      if (end > begin) folders.emplace_back(all.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = std::getenv(name)) folders.push_back(fs::path{home} / "bin");
  }
  folders.emplace_back("/usr/local/cuda/bin");
  return folders;
}

std::string text_of(const fs::path& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

/// A temporary folder, removed by the destructor.
class Scratch {
 public:
  Scratch() {
    std::string name =
        (fs::temp_directory_path() / "kvsim-profiler-").string() + std::string(6, 'X');
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

fs::path find_program(const std::string& name, const std::vector<fs::path>& folders) {
  for (const fs::path& folder : folders) {
    const fs::path path = folder / name;
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

ProfilerRun run_profiler(const std::vector<std::string>& program, std::chrono::milliseconds limit) {
  const fs::path ncu = find_program("ncu", program_folders());
  if (ncu.empty()) return {.problem = "ncu not found", .csv = {}, .output = {}};
  const Scratch scratch;
  if (scratch.path().empty()) {
    return {.problem = "no temporary folder can be made", .csv = {}, .output = {}};
  }
  const fs::path csv = scratch.path() / "counters.csv";
  const fs::path output = scratch.path() / "output.json";
  std::vector<std::string> words{ncu.string(),
                                 "--csv",
                                 "--page",
                                 "details",
                                 "--print-units",
                                 "base",
                                 "--profile-from-start",
                                 "off",
                                 "--metrics",
                                 "dram__bytes_read.sum,dram__bytes_write.sum",
                                 "--log-file",
                                 csv.string()};
  words.insert(words.end(), program.begin(), program.end());
  const ChildEnd end = run_program(words, output, limit);
  ProfilerRun run{.problem = {}, .csv = text_of(csv), .output = text_of(output)};
  run.problem = profiler_problem(run.csv);
  if (run.problem.empty()) run.problem = profiler_problem(run.output);
  if (run.problem.empty() && !end.why.empty()) {
    run.problem = fmt::format("ncu ended with {}", end.why);
  }
  return run;
}

}  // namespace kvsim
