// run_kept FILE|FOLDER…: runs each kept fuzz input once, in any build.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "tests/fuzz/target.hpp"

namespace {

namespace fs = std::filesystem;

int inputs = 0;

void run(const fs::path& path) {
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator{path}) run(entry.path());
    return;
  }
  std::ifstream in{path, std::ios::binary};
  const std::string bytes{std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
  (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  ++inputs;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) run(argv[i]);
  fmt::print("{} inputs answered\n", inputs);
  return inputs > 0 ? 0 : 1;
}
