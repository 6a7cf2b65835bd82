#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/memory/caching_allocator.hpp"

namespace kvsim {
namespace {

/// In the format of c10's format_size.
std::string pytorch_size(Bytes n) {
  const auto size = static_cast<double>(n.count());
  if (n <= 1_KiB) return fmt::format("{} bytes", n.count());
  if (n <= 1_MiB) return fmt::format("{:.2f} KiB", size / 1024);
  if (n <= 1_GiB) return fmt::format("{:.2f} MiB", size / 1048576);
  return fmt::format("{:.2f} GiB", size / 1073741824);
}

}  // namespace

double AllocatorStats::fragmentation() const {
  const Bytes cached = reserved - active;
  if (cached <= Bytes{}) return 0;
  return 1.0 - static_cast<double>(largest_free.count()) / static_cast<double>(cached.count());
}

std::string OutOfMemory::message() const {
  std::string text = fmt::format(
      "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is "
      "free. Including non-PyTorch memory, this process has {} memory in use. ",
      pytorch_size(tried), device.index, pytorch_size(device.total), pytorch_size(free),
      pytorch_size(device.outside + reserved));
  if (allowed) text += fmt::format("{} allowed; ", pytorch_size(*allowed));
  text += fmt::format(
      "Of the allocated memory {} is allocated by PyTorch, and {} is reserved by PyTorch but "
      "unallocated.",
      pytorch_size(allocated), pytorch_size(reserved - allocated));
  std::vector<std::pair<std::string, Bytes>> holders{owners.begin(), owners.end()};
  std::stable_sort(holders.begin(), holders.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  for (std::size_t i = 0; i < holders.size(); ++i) {
    text += fmt::format("{}{} {}", i == 0 ? "\nHeld by: " : ", ", holders[i].first,
                        pytorch_size(holders[i].second));
  }
  return text;
}

}  // namespace kvsim
