#include "sim/cli/options/quality_options.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/names.hpp"

namespace kvsim {
namespace {

constexpr double kMaxLoss = 0.01;

std::vector<std::string> folded_names(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) out.push_back(folded_name(name));
  return out;
}

bool takes(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void add_saving_options(std::vector<Option>& options) {
  options.push_back({"max-loss", 0, "SHARE", false, "bound on the loss of score: 1% or 0.01 (1%)"});
  options.push_back(
      {"model", 0, "NAME", true, "only rows of these models, by their names in the rows"});
  options.push_back({"method", 0, "NAME", true, "only rows of these methods"});
  options.push_back(
      {"task", 0, "NAME", false, "only tasks with this prefix: longbench, ruler-4k/niah"});
  options.push_back(
      {"context", 0, "N", false, "tokens of your prompts; prints the nearest measured context"});
}

double read_share(const std::string& option, const std::string& text) {
  std::string number = text;
  const auto trim = [&] {
    while (!number.empty() && number.back() == ' ') number.pop_back();
  };
  trim();
  const bool is_percent = !number.empty() && number.back() == '%';
  if (is_percent) number.pop_back();
  trim();
  const auto value = parse_number(number);
  const double share = value.value_or(-1.0) / (is_percent ? 100.0 : 1.0);
  if (!(share >= 0.0 && share < 1.0)) {
    throw InputError{option, "a share in [0, 1): 1% or 0.01", fmt::format("\"{}\"", text)};
  }
  return share;
}

SavingQuery saving_query(const Arguments& arguments, const std::vector<QualityRow>& rows) {
  SavingQuery query{.max_loss = kMaxLoss};
  if (const auto loss = arguments.value("max-loss")) {
    query.max_loss = read_share("--max-loss", *loss);
  }
  query.models = folded_names(arguments.list("model"));
  query.methods = folded_names(arguments.list("method"));
  query.task = arguments.value("task").value_or("");
  query.context = arguments.number("context", 1.0, 1e9);
  std::set<std::string> methods;
  for (const QualityRow& row : rows) methods.insert(row.method);
  for (const std::string& name : query.methods) {
    if (methods.contains(name)) continue;
    const std::vector<std::string> known{methods.begin(), methods.end()};
    throw InputError{
        fmt::format("--method: {}", unknown_name("method of these rows", name, known))};
  }
  const bool has_task = std::any_of(rows.begin(), rows.end(), [&](const QualityRow& row) {
    return row.task.starts_with(query.task);
  });
  if (!has_task) {
    std::set<std::string> tasks;
    for (const QualityRow& row : rows) tasks.insert(row.task);
    const std::vector<std::string> known{tasks.begin(), tasks.end()};
    throw InputError{
        fmt::format("--task: {}", unknown_name("task of these rows", query.task, known))};
  }
  return query;
}

bool selects_row(const SavingQuery& query, const QualityRow& row) {
  return takes(query.models, folded_name(row.model)) && takes(query.methods, row.method) &&
         row.task.starts_with(query.task);
}

std::vector<QualityRow> read_quality_files(const std::vector<std::string>& files) {
  refuse_repeated_files("", files);
  std::vector<QualityRow> rows;
  for (const std::string& file : files) {
    std::vector<QualityRow> more = read_quality(file);
    rows.insert(rows.end(), std::make_move_iterator(more.begin()),
                std::make_move_iterator(more.end()));
  }
  return rows;
}

}  // namespace kvsim
