#include <cstdlib>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/target.hpp"

namespace kvsim::fuzz {

std::filesystem::path as_file(std::string_view bytes) {
  static const int file = memfd_create("input", 0);
  if (file < 0 || ftruncate(file, 0) != 0 || lseek(file, 0, SEEK_SET) != 0 ||
      write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    std::abort();
  }
  return "/proc/self/fd/" + std::to_string(file);
}

}  // namespace kvsim::fuzz
