#pragma once

#include <string>
#include <vector>

#include "models/quality/quality_rows.hpp"
#include "models/quality/quality_saving.hpp"
#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// Adds --max-loss, --model, --method, --task and --context.
void add_saving_options(std::vector<Option>& options);

/// Reads a share: "1%", "1 %" or "0.01". Errors: InputError at `option` outside [0, 1).
[[nodiscard]] double read_share(const std::string& option, const std::string& text);

/// The query of those options. Errors: InputError, also for models and methods without rows, with
/// the nearest name. A model without rows is accepted if `rows` has the named methods on other
/// models.
[[nodiscard]] SavingQuery saving_query(const Arguments& arguments,
                                       const std::vector<QualityRow>& rows);

/// Whether the query's models, methods and task select a row.
[[nodiscard]] bool selects_row(const SavingQuery& query, const QualityRow& row);

/// Rows of all files. Errors: as read_quality, and InputError for a file given twice.
[[nodiscard]] std::vector<QualityRow> read_quality_files(const std::vector<std::string>& files);

}  // namespace kvsim
