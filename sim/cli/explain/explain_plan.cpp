// kvsim explain of a plan: the basis of an answer. For a static batch: every byte of the run at the
// answer, the margin for a run that needs more than predicted, and the shortage at the next size.
// For a service: the share of its bounds that the answer uses.

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/explain/explain_parts.hpp"

namespace kvsim {
namespace {

constexpr std::array<std::string_view, 4> kPlanKeys{"longest_context", "largest_batch",
                                                    "highest_rate", "fewest_gpus"};

std::string bytes_text(double bytes) { return to_text(Bytes{std::llround(bytes)}); }

std::string spaced(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

/// "batch 1, 1,818,564 prompt and 512 output tokens".
std::string sizes_text(const Field& run) {
  return fmt::format("batch {}, {} prompt and {} output tokens",
                     count_text(explained_number(run.at("batch"))),
                     count_text(explained_number(run.at("prompt_tokens"))),
                     count_text(explained_number(run.at("output_tokens"))));
}

/// "kv_capacity: the cache of … does not fit".
std::string reason_text(const Field& why) {
  return fmt::format("{}: {}", why.at("constraint").string(), why.at("text").string());
}

/// The varied knobs, most effective first.
ExplainedTable knobs_table(const Field& impossible) {
  ExplainedTable table{
      "what would help, with required over available memory after it (1 or less fits)", {}};
  for (const Field& knob : impossible.at("knobs").items()) {
    const auto need = maybe_number(knob, "need");
    const std::string enough = text_or_none(knob, "enough");
    table.rows.push_back(
        {.what = fmt::format("{} {}", knob.at("knob").string(), knob.at("change").string()),
         .text = fmt::format("{}{}", need ? fmt::format("{:.3g}", *need) : "impossible",
                             enough.empty() ? "" : fmt::format("; {} is enough", enough))});
  }
  return table;
}

/// Memory by owner when the next size requested more than was free.
ExplainedTable refusal_table(const Field& oom) {
  ExplainedTable table{
      fmt::format("one more, in {}: owners of the memory available at this confidence",
                  oom.at("phase").string()),
      {}};
  const double free = explained_number(oom.at("free"));
  double held = 0;
  for (const auto& [owner, bytes] : oom.at("owners").members()) held += explained_number(bytes);
  const double all = held + free;
  const auto add = [&](const std::string& what, double bytes) {
    table.rows.push_back({.what = what,
                          .share = all > 0 ? std::optional{bytes / all} : std::nullopt,
                          .text = bytes_text(bytes)});
  };
  for (const auto& [owner, bytes] : oom.at("owners").members()) add(owner, explained_number(bytes));
  add("free", free);
  table.rows.push_back(
      {.what = "requested",
       .text = fmt::format("{} for {}", bytes_text(explained_number(oom.at("requested"))),
                           oom.at("what").string())});
  return table;
}

/// Explains a static batch: every byte of one GPU at the answer.
void explain_memory(const Field& candidate, double confidence, Explanation& out) {
  const auto run = candidate.find("at_answer");
  if (!run) {
    candidate.fail(
        "no run at the answer (at_answer): an older kvsim wrote this plan, or no prefill "
        "completed; plan again");
  }
  out.notes.push_back(fmt::format("rests on the run of {}; its peak is in {}", sizes_text(*run),
                                  run->at("peak_phase").string()));
  for (const Field& term : run->at("peak_terms").items()) {
    out.terms.push_back(
        {.what = fmt::format("{}: {}", term.at("owner").string(), term.at("what").string()),
         .value = explained_number(term.at("bytes")),
         .formula = text_or_none(term, "formula"),
         .source = text_or_none(term, "source")});
  }
  const double peak = explained_number(candidate.at("peak_hbm_bytes"));
  resolve(out, run->at("peak_terms"), "peak_hbm_bytes", "B", peak);
  const double usable = explained_number(candidate.at("usable_hbm_bytes"));
  const double free = std::min(explained_number(run->at("free_bytes")), usable - peak);
  const double back = usable - peak - free;
  if (back > 0) {
    out.terms.push_back(
        {.what = fmt::format("margin of uncertain terms at p{:g}", 100 * confidence),
         .value = back,
         .source = candidate.at("memory_basis").string()});
  }
  out.terms.push_back({.what = "free", .value = free});
  resolve(out, *run, "usable_hbm_bytes", "B", usable);
  const auto next = candidate.find("runs_out");
  if (!next) {
    out.notes.emplace_back("the search ended there, not because of memory");
    return;
  }
  out.notes.push_back(
      fmt::format("the next, {}, does not fit: {}", sizes_text(*next), reason_text(*next)));
  if (const auto oom = next->find("oom")) out.tables.push_back(refusal_table(*oom));
}

/// Explains a service: the share of each bound that is used.
void explain_bounds(const Field& candidate, double attainment, Explanation& out) {
  out.notes.push_back(fmt::format("simulated: {}", candidate.at("simulated").string()));
  const auto bounds = candidate.find("bounds");
  if (!bounds) candidate.fail("no bounds: an older kvsim wrote this plan; plan again");
  ExplainedTable table{
      fmt::format("bounds at the answer: the share of each that {:g} % of requests stay within",
                  100 * attainment),
      {}};
  const Field* tightest = nullptr;
  double max_share = -1;
  const std::vector<Field> all = bounds->items();
  for (const Field& bound : all) {
    const double share = explained_number(bound.at("share"));
    const double limit = explained_number(bound.at("bound_s"));
    if (share > max_share) {
      max_share = share;
      tightest = &bound;
    }
    table.rows.push_back({.what = bound.at("bound").string(),
                          .share = share,
                          .text = fmt::format("{} of {}", to_text(Seconds{share * limit}),
                                              to_text(Seconds{limit}))});
  }
  const double factor = explained_number(candidate.at("time_factor"));
  out.notes.push_back(fmt::format("every iteration takes {:.4g} times as long as predicted: {}",
                                  factor, candidate.at("time_basis").string()));
  const auto next = maybe_number(candidate, "next");
  if (next && tightest != nullptr) {
    out.notes.push_back(
        fmt::format("the next size tried, {}, no longer meets all bounds for {:g} % of requests; "
                    "nearest to its bound at the answer is {} ({})",
                    out.key == "fewest_gpus" ? fmt::format("{} GPUs", count_text(*next))
                                             : fmt::format("{:.6g} requests/s", *next),
                    100 * attainment, tightest->at("bound").string(), percent_text(max_share)));
  } else if (!next) {
    out.notes.emplace_back("the search ended there, not because of a bound");
  }
  out.tables.push_back(std::move(table));
}

/// Candidates of all answers to a question, and their labels.
struct Candidates {
  std::vector<Field> answers;  // the answer of each candidate
  std::vector<Field> fields;
  std::vector<std::string> labels;
  std::string best;  // label of the best candidate if there is one answer
};
Candidates candidates_of(const Field& answers, std::string_view question) {
  Candidates out;
  std::vector<Field> chosen;
  for (const Field& answer : answers.items()) {
    if (answer.at("question").string() == question) chosen.push_back(answer);
  }
  for (const Field& answer : chosen) {
    for (const Field& candidate : answer.at("candidates").items()) {
      std::string label = candidate.at("label").string();
      if (chosen.size() > 1) label = fmt::format("{}: {}", answer.at("of").string(), label);
      out.answers.push_back(answer);
      out.fields.push_back(candidate);
      out.labels.push_back(std::move(label));
    }
  }
  if (chosen.size() == 1) out.best = text_or_none(chosen.front(), "best");
  return out;
}

}  // namespace

std::span<const std::string_view> plan_keys() { return kPlanKeys; }

bool is_plan_key(std::string_view key) {
  return std::find(kPlanKeys.begin(), kPlanKeys.end(), key) != kPlanKeys.end();
}

Explanation explain_plan(const Field& plan, const ExplainRequest& request) {
  const Field answers = plan.at("answers");
  const Candidates all = candidates_of(answers, request.key);
  if (all.fields.empty()) {
    std::vector<std::string> questions;
    for (const Field& answer : answers.items()) {
      std::string question = answer.at("question").string();
      if (std::find(questions.begin(), questions.end(), question) == questions.end()) {
        questions.push_back(std::move(question));
      }
    }
    answers.fail(fmt::format("this plan has no question {}; it has {}", request.key,
                             fmt::join(questions, ", ")));
  }
  const std::string& which = request.which.empty() ? all.best : request.which;
  const std::size_t at = which_of(answers, "candidate", all.labels, which);
  const Field& candidate = all.fields[at];
  const Field& answer = all.answers[at];
  const bool service_needs_gpus = request.key == "fewest_gpus";
  const bool service = service_needs_gpus || request.key == "highest_rate";
  Explanation out{.key = request.key,
                  .point = all.labels[at],
                  .unit = answer.at("unit").string(),
                  .value = maybe_number(candidate, "answer"),
                  .low = maybe_number(candidate, service_needs_gpus ? "optimistic" : "safe"),
                  .high = maybe_number(candidate, service_needs_gpus ? "safe" : "optimistic")};
  out.notes.push_back(fmt::format(
      "{} of {}, on {} x {}", spaced(request.key), answer.at("of").string(),
      count_text(explained_number(candidate.at("gpu_count"))), candidate.at("gpu").string()));
  if (const std::string pruned = text_or_none(candidate, "pruned"); !pruned.empty()) {
    out.notes.push_back("not searched: " + pruned);
    return out;
  }
  if (const auto impossible = candidate.find("impossible")) {
    out.notes.push_back("impossible: " + reason_text(*impossible));
    ExplainedTable table = knobs_table(*impossible);
    if (!table.rows.empty()) out.tables.push_back(std::move(table));
    return out;
  }
  if (const std::string range = text_or_none(candidate, "range"); !range.empty()) {
    out.notes.push_back(fmt::format("range {} in {:g} % of cases", range,
                                    100 * explained_number(plan.at("range_confidence"))));
  }
  if (!out.value) candidate.fail("neither an answer nor a reason why there is none");
  const double probes = explained_number(candidate.at("probes"));
  out.notes.push_back(fmt::format(
      "{} sizes were tried{}", count_text(probes),
      candidate.at("monotone").boolean() ? "" : "; some hold beyond others that do not"));
  if (service) {
    explain_bounds(candidate, explained_number(plan.at("attainment")), out);
    return out;
  }
  explain_memory(candidate, explained_number(plan.at("confidence")), out);
  for (const Field& note : candidate.at("notes").items()) out.notes.push_back(note.string());
  return out;
}

}  // namespace kvsim
