#pragma once

#include <cstddef>
#include <string_view>

namespace kvsim {

/// Opens those of standard input, output and error that are closed (so that no other file gets
/// their numbers) and turns SIGPIPE into a failing write.
void prepare_standard_streams();

/// Writes all of `text` to standard output. A reader that has gone is no error. Errors: InputError
/// where the output cannot be written otherwise: a full disk, or none that was open.
void write_out(std::string_view text);
/// Writes to standard error, whatever comes of it.
void write_err(std::string_view text);

/// Columns of the terminal on standard output; 100 where it is none.
[[nodiscard]] std::size_t terminal_width();

}  // namespace kvsim
