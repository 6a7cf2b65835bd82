#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// One published figure with the set-up it was taken on, as the file has it: texts.
struct PublishedRow {
  std::size_t line = 0;  // of the file, where the row begins
  std::string id, source;
  std::string gpu, gpu_count, model, dtype, kv_dtype, framework;
  std::string method, method_params;
  std::string batch, prompt_len, output_len;
  std::string metric, value, unit, note;
};

/// The rows of a CSV file of published figures (RFC 4180; columns by the names of PublishedRow, in
/// any order; columns of other names are passed over). Errors: InputError "FILE:LINE: …" for a file
/// that cannot be read, a missing or repeated column, a quote left open, or a row of too many or
/// too few cells. What a cell says is not judged here.
[[nodiscard]] std::vector<PublishedRow> read_published_csv(const std::filesystem::path& path);
/// The same for a text; `name` is the file's name in messages.
[[nodiscard]] std::vector<PublishedRow> parse_published_csv(std::string_view text,
                                                            std::string_view name);

}  // namespace kvsim
