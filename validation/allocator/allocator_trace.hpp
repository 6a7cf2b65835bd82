#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/units.hpp"

namespace kvsim {

/// The event of a line of an allocation trace (docs/allocator.md).
enum class AllocatorOp : std::uint8_t {
  kAlloc,
  kFree,
  kFreeRequested,  // the tensor was destroyed, streams still use the block
  kFreeCompleted,
  kEmptyCache,
  kOom,           // an allocation of `size` failed
  kSegmentAlloc,  // the allocator took a segment from the device
  kSegmentFree,
  kSegmentMap,  // of expandable segments
  kSegmentUnmap
};
[[nodiscard]] std::string_view name_of(AllocatorOp op);

struct AllocatorEvent {
  AllocatorOp op = AllocatorOp::kAlloc;
  std::int64_t line = 0;  // of the file, from 1
  std::int64_t id = 0;    // of the tensor: allocations and frees
  std::int64_t size = 0;  // requested bytes; for segments, the whole segment
  std::int32_t stream = 0;
  std::uint64_t address = 0;  // of a segment; 0: not recorded
  // After the event, as far as recorded.
  std::optional<Bytes> reserved{}, allocated{};
  std::optional<std::int64_t> segments{};
};

/// A recorded sequence of allocations, with facts reported by the recording machine.
struct AllocatorTrace {
  std::string source;                      // origin, for readers
  std::optional<Bytes> device_bytes{};     // of the device
  std::optional<Bytes> offloaded_bytes{};  // used by other processes and by the CUDA context
  std::string alloc_conf;                  // PYTORCH_CUDA_ALLOC_CONF
  std::int64_t initial_blocks = 0;  // allocations at the beginning that represent existing blocks
  std::vector<AllocatorEvent> events;
  bool has_segments = false;  // segment events were recorded
};

/// Reads JSON lines: a header, then one event per line. Errors: InputError "FILE:LINE: /key:
/// expected …" for any other content, or an identifier that is allocated while in use, freed while
/// not in use, or freed in the wrong order.
[[nodiscard]] AllocatorTrace parse_allocator_trace(std::string_view text, const std::string& file);
/// As above, for a file. Errors: InputError if it cannot be read.
[[nodiscard]] AllocatorTrace read_allocator_trace(const std::filesystem::path& path);

}  // namespace kvsim
