#include <array>
#include <cstdlib>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/target.hpp"

namespace kvsim::fuzz {

std::filesystem::path as_file(std::string_view bytes, std::size_t slot) {
  static const std::array<int, 2> files{memfd_create("input", 0), memfd_create("beside", 0)};
  const int file = files.at(slot);
  if (file < 0 || ftruncate(file, 0) != 0 || lseek(file, 0, SEEK_SET) != 0 ||
      write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    std::abort();
  }
  return "/proc/self/fd/" + std::to_string(file);
}

}  // namespace kvsim::fuzz
