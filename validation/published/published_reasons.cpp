#include "validation/published/published_reasons.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/json/embedded.hpp"
#include "models/json/field.hpp"
#include "models/units/check.hpp"
#include "validation/published/published_stacks.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> published_reasons();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

struct Reasons {
  std::vector<RowReason> rows;
  std::vector<StackReason> stacks;
};

Reasons read_reasons() {
  const auto files = embedded::published_reasons();
  KVSIM_CHECK(files.size() == 1, "{} files of reasons", files.size());
  const Field root = Field::parse(files[0].text, "validation/data/published-reasons.json");
  root.allow_only({"schema", "rows", "stacks"});
  Reasons out;
  for (const Field& item : root.at("rows").items()) {
    item.allow_only({"document", "rows", "reason"});
    out.rows.push_back({.document = item.at("document").string(),
                        .rows = item.at("rows").string(),
                        .reason = item.at("reason").string()});
  }
  for (const Field& item : root.at("stacks").items()) {
    item.allow_only({"stack", "reason"});
    out.stacks.push_back(
        {.stack = item.at("stack").string(), .reason = item.at("reason").string()});
  }
  return out;
}

const Reasons& reasons() {
  static const Reasons kReasons = read_reasons();
  return kReasons;
}

}  // namespace

std::span<const RowReason> row_reasons() { return reasons().rows; }
std::span<const StackReason> stack_reasons() { return reasons().stacks; }

bool misses_badly(const ScoredRow& row) {
  const auto error = row.error();
  return error && std::abs(*error) > kBadMiss;
}

const RowReason* find_reason(const ScoredRow& row) {
  const auto all = row_reasons();
  const auto found = std::find_if(all.begin(), all.end(), [&](const RowReason& r) {
    return r.document == row.document && names_row("published: " + r.rows, row.row.id);
  });
  return found == all.end() ? nullptr : &*found;
}

const StackReason* find_stack_reason(std::string_view stack) {
  const auto all = stack_reasons();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const StackReason& r) { return r.stack == stack; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace kvsim
