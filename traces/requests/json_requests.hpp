#pragma once

// Request traces in JSON: Mooncake (a record a line) and ShareGPT (a list of conversations).

#include <istream>
#include <string>
#include <string_view>

#include "traces/requests/read_requests.hpp"
#include "traces/requests/record_reader.hpp"

namespace kvsim {

/// Mooncake's lines, `first` the one that `lines` gave last. Errors: as read_requests.
[[nodiscard]] RequestTrace read_mooncake(LineReader& lines, std::string first,
                                         const ReadOptions& options);

/// A list of conversations, or conversations behind each other, `first` the line that `lines` gave
/// last. A conversation is read as a whole, the file is not. Errors: as read_requests.
[[nodiscard]] RequestTrace read_sharegpt(LineReader& lines, std::string first,
                                         const ReadOptions& options);

/// Gives ids to the blocks of a growing context (see RequestTrace::prefix_ids): what two turns
/// share as whole blocks has equal ids, a last block that is not full has one of its own.
class ContextIds {
 public:
  ContextIds(RequestTrace& trace, std::int32_t block) : trace_{trace}, block_{block} {
    trace_.prefix_block = block;
  }
  /// Another conversation begins, its first blocks being `shared` (whole blocks).
  void begin(const std::vector<std::uint64_t>& shared = {}) { full_ = shared; }
  /// Sets the ids of a turn; its prompt continues that of the turn before. Errors: InputError where
  /// the trace has more ids than it can number.
  void turn(Request& request);
  /// A number that no other block has.
  std::uint64_t fresh() { return next_++; }

 private:
  RequestTrace& trace_;
  std::int32_t block_;
  std::uint64_t next_ = 0;
  std::vector<std::uint64_t> full_;
};

/// Room for `count` ids behind those of `trace`. Errors: InputError beyond 2^31 - 1 of them.
void check_prefix_room(const RequestTrace& trace, std::size_t count);

}  // namespace kvsim
