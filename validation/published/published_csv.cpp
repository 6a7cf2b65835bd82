#include "validation/published/published_csv.hpp"

#include <array>
#include <string>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "validation/measured/csv_table.hpp"

namespace kvsim {
namespace {

struct Column {
  std::string_view name;
  std::string PublishedRow::*cell;
};

constexpr std::array kColumns{
    Column{"id", &PublishedRow::id},
    Column{"source", &PublishedRow::source},
    Column{"gpu", &PublishedRow::gpu},
    Column{"gpu_count", &PublishedRow::gpu_count},
    Column{"model", &PublishedRow::model},
    Column{"dtype", &PublishedRow::dtype},
    Column{"kv_dtype", &PublishedRow::kv_dtype},
    Column{"framework", &PublishedRow::framework},
    Column{"method", &PublishedRow::method},
    Column{"method_params", &PublishedRow::method_params},
    Column{"batch", &PublishedRow::batch},
    Column{"prompt_len", &PublishedRow::prompt_len},
    Column{"output_len", &PublishedRow::output_len},
    Column{"metric", &PublishedRow::metric},
    Column{"value", &PublishedRow::value},
    Column{"unit", &PublishedRow::unit},
    Column{"note", &PublishedRow::note},
};

std::vector<PublishedRow> rows_of(const CsvTable& table) {
  std::array<std::size_t, kColumns.size()> place{};
  for (std::size_t c = 0; c < kColumns.size(); ++c) {
    if (!table.has(kColumns[c].name)) {
      throw InputError{table.place(), fmt::format("a column \"{}\"", kColumns[c].name),
                       fmt::format("{} columns without it", table.columns().size())};
    }
    place[c] = table.index(kColumns[c].name);
  }
  std::vector<PublishedRow> rows(table.rows());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].line = table.line(i);
    for (std::size_t c = 0; c < kColumns.size(); ++c) {
      rows[i].*kColumns[c].cell = table.text(i, place[c]);
    }
  }
  return rows;
}

}  // namespace

std::vector<PublishedRow> parse_published_csv(std::string_view text, std::string_view name) {
  return rows_of(CsvTable::parse(text, std::string{name}));
}

std::vector<PublishedRow> read_published_csv(const std::filesystem::path& path) {
  return rows_of(CsvTable::read_file(path));
}

}  // namespace kvsim
