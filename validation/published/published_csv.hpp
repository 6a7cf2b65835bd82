#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// One published figure and its set-up, as the texts of the file.
struct PublishedRow {
  std::size_t line = 0;  // line of the file on which the row begins
  std::string id, source;
  std::string gpu, gpu_count, model, dtype, kv_dtype, framework;
  std::string method, method_params;
  std::string batch, prompt_len, output_len;
  std::string metric, value, unit, note;
};

/// The rows of a CSV file of published figures (RFC 4180; columns by the names of PublishedRow, in
/// any order; other columns are skipped). Errors: InputError "FILE:LINE: …" for a file that cannot
/// be read, a missing or repeated column, an unterminated quote, or a row with too many or too few
/// cells. The contents of cells are not checked here.
[[nodiscard]] std::vector<PublishedRow> read_published_csv(const std::filesystem::path& path);
/// The same for a text; `name` is the file's name in messages.
[[nodiscard]] std::vector<PublishedRow> parse_published_csv(std::string_view text,
                                                            std::string_view name);

}  // namespace kvsim
