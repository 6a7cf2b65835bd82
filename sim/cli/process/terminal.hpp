#pragma once

#include <cstddef>
#include <string_view>

namespace kvsim {

/// Opens standard input, output and error if they are closed, so that no other file gets their
/// descriptors, and ignores SIGPIPE, so that the write fails instead.
void prepare_standard_streams();

/// Writes all of `text` to standard output. A closed pipe is not an error. Errors: InputError for
/// other failures: a full disk, or standard output that was not open.
void write_out(std::string_view text);
/// Writes to standard error and ignores failures.
void write_err(std::string_view text);

/// Columns of the terminal on standard output; 100 if it is not a terminal.
[[nodiscard]] std::size_t terminal_width();

}  // namespace kvsim
