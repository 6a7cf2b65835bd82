// kvsim explain of a replay: the entries that a method holds by term, and why each one is kept.

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "models/methods/session/kept_entry.hpp"
#include "models/units/error.hpp"
#include "sim/cli/explain/explain_parts.hpp"
#include "sim/cli/explain/kept_lines.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kReplayKeys{"bytes_held_final", "entries_held_final",
                                                      "kept", "rel_error_mean"};
constexpr const char* kKeptFile = "replay_kept.csv";

/// The description of a role for display.
std::string_view role_text(std::string_view role) {
  static const std::map<std::string_view, std::string_view> words{
      {"whole", "all tokens: none was removed"},
      {"sink", "sinks: first tokens, protected"},
      {"recent", "recent window: last tokens, protected"},
      {"protected", "protected by the method's rule, regardless of score"},
      {"score", "heavy hitters: chosen by score"},
      {"decoded", "tokens after the prompt: none is removed at decode steps"},
      {"merged", "merged entries: each represents several tokens"}};
  const auto found = words.find(role);
  return found == words.end() ? role : found->second;
}

struct Role {
  double entries = 0, tokens = 0;
  std::optional<double> lowest, highest;
};

/// Sums over layers by role, in the order of KeptRole.
std::vector<std::pair<std::string, Role>> roles_of(const Field& method) {
  std::vector<std::pair<std::string, Role>> roles;
  for (int r = 0; r < kKeptRoles; ++r) {
    roles.emplace_back(name_of(static_cast<KeptRole>(r)), Role{});
  }
  const Field list = method.at("kept_by_role");
  for (const Field& row : list.items()) {
    const std::string name = row.at("role").string();
    const auto at = std::find_if(roles.begin(), roles.end(),
                                 [&](const auto& role) { return role.first == name; });
    if (at == roles.end()) row.at("role").expected("a role (docs/results.md)");
    Role& role = at->second;
    role.entries += explained_number(row.at("entries"));
    role.tokens += explained_number(row.at("tokens"));
    if (const auto score = maybe_number(row, "score_lowest")) {
      role.lowest = std::min(role.lowest.value_or(*score), *score);
    }
    if (const auto score = maybe_number(row, "score_highest")) {
      role.highest = std::max(role.highest.value_or(*score), *score);
    }
  }
  std::erase_if(roles, [](const auto& role) { return role.second.entries == 0; });
  return roles;
}

std::string score_text(const Role& role) {
  if (role.lowest && role.highest) {
    return fmt::format("scores {:.4g} to {:.4g}", *role.lowest, *role.highest);
  }
  return role.tokens > role.entries ? fmt::format("of {} tokens", count_text(role.tokens)) : "";
}

Explanation entries_held(const Field& method) {
  Explanation out{.key = "entries_held_final",
                  .unit = "entries",
                  .value = explained_number(method.at("entries_held_final"))};
  for (const auto& [name, role] : roles_of(method)) {
    out.terms.push_back(
        {.what = std::string{role_text(name)}, .value = role.entries, .formula = score_text(role)});
  }
  resolve(out, method.at("kept_by_role"), "entries_held_final", "entries", *out.value);
  out.notes.emplace_back(
      "over all layers and stored heads, after the last step; --layer and --head of \"kept\" show "
      "one head entry by entry");
  return out;
}

/// Compares the closed form of the size law with the counted bytes.
std::string law_text(const Field& method, double held) {
  const auto closed = maybe_number(method, "closed_form_bytes_final");
  if (!closed) {
    const auto law = method.find("measured_law");
    if (!law) return "there is no closed form";
    return fmt::format(
        "no closed form: the size depends on data; measured on {}: {:.4g} of the prompt kept, "
        "{:.4g} entries per token after it",
        law->at("trace").string(), explained_number(law->at("kept_of_prompt")),
        explained_number(law->at("entries_per_token")));
  }
  if (*closed == held) {
    return fmt::format("closed form of the size law: {} B, the same as counted",
                       count_text(*closed));
  }
  return fmt::format("closed form of the size law: {} B, {} B {} than counted", count_text(*closed),
                     count_text(std::abs(*closed - held)), *closed > held ? "more" : "less");
}

Explanation bytes_held(const Field& method) {
  Explanation out{.key = "bytes_held_final",
                  .unit = "B",
                  .value = explained_number(method.at("bytes_held_final"))};
  const double side = explained_number(method.at("side_bytes_final"));
  const double entries = explained_number(method.at("entries_held_final"));
  const double rows = *out.value - side;
  const double each = entries > 0 ? rows / entries : 0;
  const bool even = each == std::floor(each);
  double left = rows;
  const auto roles = roles_of(method);
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const auto& [name, role] = roles[i];
    const double bytes = i + 1 == roles.size() ? left : std::round(each * role.entries);
    left -= bytes;
    out.terms.push_back(
        {.what = fmt::format("K and V of {}", role_text(name)),
         .value = bytes,
         .formula =
             even ? fmt::format("{} entries x {} B", count_text(role.entries), count_text(each))
                  : fmt::format("{} of {} entries, {:.1f} B on average: the store has no "
                                "bytes of one entry",
                                count_text(role.entries), count_text(entries), each),
         .source = score_text(role)});
  }
  if (side > 0) {
    out.terms.push_back(
        {.what = "side data",
         .value = side,
         .source = "scores, norms, indices and the like, as the method keeps them"});
  }
  resolve(out, method, "bytes_held_final", "B", *out.value);
  out.notes.push_back(law_text(method, *out.value));
  const double full = explained_number(method.at("bytes_full_final"));
  out.notes.push_back(fmt::format("the full cache: {} B; held: {} of it", count_text(full),
                                  percent_text(full > 0 ? *out.value / full : 0)));
  if (const double host = explained_number(method.at("host_bytes_final")); host > 0) {
    out.notes.push_back(fmt::format("and {} B in host memory", count_text(host)));
  }
  return out;
}

Explanation error(const Field& replay, const Field& method) {
  const auto mean = maybe_number(method, "rel_error_mean");
  if (!mean) {
    const bool has_steps = explained_number(method.at("steps")) > 0;
    fail_without(method, "rel_error_mean",
                 has_steps ? "its errors are not numbers: values of its store are out of the "
                             "range of their format"
                           : "the trace has no decode steps");
  }
  Explanation out{.key = "rel_error_mean", .unit = "", .value = mean};
  const Field layers = method.at("layers");
  const auto n = static_cast<double>(layers.items().size());
  for (const Field& layer : layers.items()) {
    const double of_layer = explained_number(layer.at("rel_error_mean"));
    ExplainedTerm term{.what = fmt::format("layer {}", explained_number(layer.at("layer"))),
                       .value = of_layer / n,
                       .formula = fmt::format("{:.6g} / {:.0f} layers", of_layer, n)};
    if (const auto mass = maybe_number(layer, "retained_mass_mean")) {
      term.source = fmt::format("retained attention {:.4g}", *mass);
    }
    out.terms.push_back(std::move(term));
  }
  resolve(out, layers, "rel_error_mean", "", *mean);
  out.notes.emplace_back("|o' - o| / |o| of attention's output, mean over steps and query heads");
  // Results of earlier versions do not contain the trace's model.
  if (const auto source = replay.find("source")) {
    out.notes.push_back(fmt::format("trace: {}", source->string()));
  }
  return out;
}

Explanation kept(const Field& replay, std::size_t method, const ExplainRequest& request) {
  const std::int64_t layer = request.layer.value_or(0);
  const std::int64_t head = request.head.value_or(0);
  const fs::path file = fs::path{replay.file()}.parent_path() / kKeptFile;
  std::vector<KeptLine> lines = read_kept(file, method, layer, head);
  if (lines.empty()) {
    throw InputError{fmt::format("{}: contains no layer {}, head {} of this method", file.string(),
                                 layer, head)};
  }
  std::vector<double> scores;
  double entries = 0;
  for (const KeptLine& line : lines) {
    entries += line.entries;
    if (line.score) scores.push_back(*line.score);
  }
  std::sort(scores.begin(), scores.end(), std::greater<>{});
  Explanation out{.key = "kept", .unit = "entries", .value = entries};
  for (const KeptLine& line : lines) {
    const std::string where = line.entries > 1
                                  ? fmt::format("positions {:.0f} to {:.0f}", line.first, line.last)
                                  : fmt::format("position {:.0f}", line.first);
    ExplainedTerm term{.what = fmt::format("{}: {}", where, role_text(line.role)),
                       .value = line.entries};
    if (line.score) {
      const auto rank =
          std::lower_bound(scores.begin(), scores.end(), *line.score, std::greater<>{}) -
          scores.begin() + 1;
      term.formula = fmt::format("score {:.6g}, rank {} of {}", *line.score, rank, scores.size());
    } else if (line.tokens_each > 1) {
      term.formula = fmt::format("represents {:.0f} tokens", line.tokens_each);
    }
    out.terms.push_back(std::move(term));
  }
  out.notes.push_back(fmt::format("layer {}, stored head {}, after the last step", layer, head));
  resolve(out, replay, "kept", "entries", entries);
  return out;
}

/// "h2o 0.2", "kivi-4".
std::vector<std::string> labels_of(const Field& methods) {
  std::vector<std::string> labels;
  for (const Field& method : methods.items()) {
    const auto budget = maybe_number(method, "budget");
    labels.push_back(budget ? fmt::format("{} {}", method.at("name").string(), *budget)
                            : method.at("name").string());
  }
  return labels;
}

}  // namespace

std::span<const std::string_view> replay_keys() { return kReplayKeys; }

bool is_replay_key(std::string_view key) {
  return std::find(kReplayKeys.begin(), kReplayKeys.end(), key) != kReplayKeys.end();
}

Explanation explain_replay(const Field& replay, const ExplainRequest& request) {
  if (request.key != "kept" && (request.layer || request.head)) {
    throw InputError{fmt::format("--layer and --head apply to \"kept\", not to {}", request.key)};
  }
  const Field methods = replay.at("methods");
  const std::vector<std::string> labels = labels_of(methods);
  const std::size_t which = which_of(methods, "method", labels, request.which);
  const Field method = methods.items()[which];
  Explanation out;
  if (request.key == "kept") {
    out = kept(replay, which, request);
  } else if (request.key == "bytes_held_final") {
    out = bytes_held(method);
  } else if (request.key == "entries_held_final") {
    out = entries_held(method);
  } else {
    out = error(replay, method);
  }
  out.point = labels[which];
  return out;
}

}  // namespace kvsim
