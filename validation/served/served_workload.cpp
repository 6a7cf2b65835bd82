#include "validation/served/served_workload.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <numeric>
#include <span>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "models/units/excerpt.hpp"
#include "validation/served/served_lengths.hpp"
#include "validation/served/served_text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr double kAtOnceRate = 1e6;  // requests per second: all arrive within about a millisecond
constexpr std::int64_t kDefaultRequests = 500;

bool is_in(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string out{text};
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Whether a run's rates of tokens and of requests, if it has both, imply that every request
/// generated its maximum number of tokens and none ended early.
bool generates_all(const ServedRun& run) {
  constexpr double kRounding = 1e-3;
  const auto total = [&](std::string_view metric) {
    const auto found = std::find_if(run.metrics.begin(), run.metrics.end(),
                                    [&](const ServedMetric& m) { return m.metric == metric; });
    return found == run.metrics.end() ? 0.0 : found->value;
  };
  const double requests = total("request_throughput");
  const auto stated = cell_number(run.output_tokens);
  if (requests <= 0 || !stated || *stated <= 0) return false;
  return std::abs(total("output_throughput") / requests / *stated - 1) < kRounding;
}

/// Variation of lengths if only their mean is stated.
struct LengthShape {
  double p99_per_mean = 1;
  std::span<const double> twentieths{};  // means of equal shares of the sorted lengths
  std::int64_t cap = 0;                  // longer ones are truncated; 0: no cap
};

ordered_json lognormal(double mean, double p99, std::int64_t low, std::int64_t high) {
  constexpr double kMaxRatio = 14.9;
  return {{"kind", "lognormal"},
          {"mean", mean},
          {"p99", std::clamp(p99, mean * 1.001, mean * kMaxRatio)},
          {"min", low},
          {"max", high}};
}

ordered_json lengths_around(double mean, const LengthShape& shape) {
  if (shape.twentieths.empty()) {
    if (shape.cap > 0) mean = mean_before_cap(mean, shape.p99_per_mean, shape.cap);
    return lognormal(mean, mean * shape.p99_per_mean, 1, 1 << 22);
  }
  const double sum = std::accumulate(shape.twentieths.begin(), shape.twentieths.end(), 0.0);
  const double scale = mean * static_cast<double>(shape.twentieths.size()) / sum;
  ordered_json values = ordered_json::array(), weights = ordered_json::array();
  for (const double part : shape.twentieths) {
    values.push_back(std::max<std::int64_t>(1, std::llround(part * scale)));
    weights.push_back(1);
  }
  return {{"kind", "empirical"}, {"values", values}, {"weights", weights}};
}

/// Returns a column of lengths as a number or a distribution; null if it states none.
ordered_json lengths_of(std::string_view cell, std::string_view spread_cell,
                        std::int64_t min_tokens, const LengthShape& shape,
                        std::vector<std::string>& assumed) {
  const std::string spread = lower(spread_cell);
  constexpr std::int64_t kMax = 1 << 22;
  const auto value = cell_number(cell);
  if (!value) {
    // "p50 3500", and "p90 10000" of its spread.
    const auto after = [](std::string_view text, std::string_view word) -> std::optional<double> {
      const std::string plain = plain_cell(text);
      return plain.starts_with(word) ? cell_number(plain.substr(word.size())) : std::nullopt;
    };
    const auto p50 = after(cell, "p50 ");
    const auto p90 = after(spread_cell, "p90 ");
    if (p50 && p90 && *p50 > 0 && *p90 > *p50) {
      constexpr double kNormal90 = 1.2815515655446004;
      return {{"kind", "lognormal"},
              {"mu", std::log(*p50)},
              {"sigma", std::log(*p90 / *p50) / kNormal90},
              {"min", std::max<std::int64_t>(1, min_tokens)}};
    }
    return nullptr;
  }
  if (*value < 0.5 || *value > static_cast<double>(kMax)) {
    throw NotExpressed{"lengths that are not numbers of tokens"};
  }
  const std::int64_t mean = std::max<std::int64_t>(min_tokens, std::llround(*value));
  const auto range = parse_range(spread);
  const bool is_range = spread.starts_with("uniform") || spread.starts_with("per request");
  if (is_range && range) {
    const std::int64_t low = std::max<std::int64_t>(min_tokens, range->low);
    const std::int64_t high = std::max(low, range->high);
    const double middle = 0.5 * static_cast<double>(low + high);
    const auto width = static_cast<double>(high - low);
    if (width < 0.1 * *value) return mean;
    if (spread.starts_with("uniform") || std::abs(middle - *value) < 0.15 * *value) {
      return {{"kind", "uniform"}, {"min", low}, {"max", high}};
    }
    return lognormal(*value, static_cast<double>(high), std::max<std::int64_t>(1, low), high);
  }
  const bool generated = spread.starts_with("model") || is_in(spread, "set, statistics") ||
                         is_in(spread, "dataset") || is_in(spread, "per-request list") ||
                         spread == "per request";
  if (generated && mean > 1) {
    assumed.push_back(shape.twentieths.empty()
                          ? fmt::format("{} as a lognormal with p99 = {:.1f} means", kSpreadRemark,
                                        shape.p99_per_mean)
                          : fmt::format("{} as in a log of the set", kSpreadRemark));
    return lengths_around(*value, shape);
  }
  return mean;
}

/// "10 groups x 10 users, system 128 + question 64".
struct SharedPrompts {
  std::int64_t groups = 0, each = 0, prefix = 0;
};
SharedPrompts shared_prompts(std::string_view workload) {
  const std::string text = lower(workload);
  std::vector<std::int64_t> numbers;
  SharedPrompts out;
  std::string word;
  std::int64_t last = -1;
  bool times = false;
  // Words in order: number, "x", number is groups x prompts; "prefix N", "system N" and "N-token …
  // prefix" are the shared part.
  const auto take = [&](const std::string& w) {
    std::int64_t number = -1;
    if (!w.empty() && w.front() >= '0' && w.front() <= '9') {
      number = 0;
      for (const char c : w) {
        if (c < '0' || c > '9') break;
        number = number * 10 + (c - '0');
        if (number > (1 << 24)) break;
      }
    }
    if (w == "x") {
      times = true;
      return;
    }
    if (number < 0) return;
    if (is_in(w, "-token")) {
      out.prefix = number;
    } else if (times && last > 0 && out.groups == 0) {
      out.groups = last;
      out.each = number;
    }
    times = false;
    last = number;
  };
  for (const char c : text + " ") {
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    if (is_word) {
      word += c;
    } else if (!word.empty()) {
      take(word);
      word.clear();
    }
  }
  for (const std::string_view name : {"prefix ", "system "}) {
    for (auto at = text.find(name); at != std::string::npos && out.prefix == 0;
         at = text.find(name, at + 1)) {
      if (at > 0 && text[at - 1] == '_') continue;  // "shared_prefix 45 groups"
      std::int64_t number = 0;
      for (std::size_t i = at + name.size(); i < text.size() && text[i] >= '0' && text[i] <= '9';
           ++i) {
        number = std::min<std::int64_t>(number * 10 + (text[i] - '0'), 1 << 24);
      }
      out.prefix = number;
    }
  }
  return out;
}

/// Returns the number after `word` in a remark: "gap cv 0.51" is 0.51 for "gap cv".
std::optional<double> behind(std::string_view text, std::string_view word) {
  const auto at = text.find(word);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = text.substr(at + word.size());
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  const auto end = std::min(rest.find_first_not_of("0123456789."), rest.size());
  return cell_number(rest.substr(0, end));
}

bool log_has_arrivals(const fs::path& log) {
  std::ifstream in{log};
  std::string line;
  return std::getline(in, line) && line.starts_with("arrival_s") && std::getline(in, line) &&
         !line.starts_with(',');
}

class WorkloadMapping {
 public:
  WorkloadMapping(const ServedRun& run, const ServedClient& client, ServedSettings& settings,
                  const ServedFolders& folders)
      : run_{run}, client_{client}, settings_{settings}, folders_{folders} {}

  ServedWorkload map() {
    if (run_.arrival == "none") return without_requests();
    const fs::path log = folders_.requests / (run_.id + ".csv");
    const bool has_log = is_file(log);
    if (has_log && log_has_arrivals(log)) {
      from_log(log);
    } else {
      arrivals();
      lengths(has_log ? log : fs::path{});
      count();
      if (out_.arrivals == ServedArrivals::kOpen) open_gaps();
    }
    stratify();
    declare();
    repeat_prompts();
    note_unread();
    return std::move(out_);
  }

 private:
  /// Notes cells that are not understood, for which values are assumed.
  void note_unread() {
    constexpr std::array<std::string_view, 7> kArrivals{
        "", "poisson", "constant", "burst", "offline", "concurrency", "trace"};
    if (std::find(kArrivals.begin(), kArrivals.end(), run_.arrival) == kArrivals.end()) {
      out_.assumed.push_back(fmt::format("arrivals \"{}\" as Poisson's", excerpt(run_.arrival)));
    }
    const auto unread = [&](std::string_view column, const std::string& cell) {
      out_.assumed.push_back(fmt::format("{} \"{}\" is left out", column, excerpt(cell)));
    };
    const auto has_no_count = [](const std::string& cell) {
      return !cell.empty() && !cell_count(cell);
    };
    if (has_no_count(run_.num_requests)) unread("num_requests", run_.num_requests);
    if (has_no_count(run_.gpu_count)) unread("gpu_count", run_.gpu_count);
    if (has_no_count(run_.tp)) unread("tp", run_.tp);
    if (has_no_count(run_.pp)) unread("pp", run_.pp);
    // "1P1D", "dp=8", "ep=on", "1".
    const std::string layout = plain_cell(run_.ep_dp);
    constexpr std::array<std::string_view, 7> kParts{"dp",           "ep",     "replicas", "dcp",
                                                     "attention_dp", "moe_ep", "moe_tp"};
    const bool is_known =
        layout.empty() || cell_count(layout) || parse_apart(layout) || is_in(layout, "ep=on") ||
        is_in(layout, "ep=true") || is_in(layout, "ep=false") ||
        std::any_of(kParts.begin(), kParts.end(),
                    [&](std::string_view part) { return number_behind(layout, part).has_value(); });
    if (!is_known) unread("ep_dp", run_.ep_dp);
  }

  ServedWorkload without_requests() {
    out_.arrivals = ServedArrivals::kNone;
    out_.requests = {{"arrivals", {{"kind", "fixed"}, {"rate", 1}}},
                     {"count", 1},
                     {"prompt_tokens", 16},
                     {"output_tokens", 1}};
    out_.count = out_.stated_count = 1;
    return out_;
  }

  void from_log(const fs::path& log) {
    out_.has_log = true;
    const fs::path timeline = folders_.requests / (run_.id + ".timeline.csv");
    if (is_file(timeline)) out_.timeline = timeline;
    out_.requests["file"] = log.string();
    if (settings_.replicas > 1) {
      settings_.keys["cluster"] = {{"replicas", settings_.replicas}};
      settings_.replicas = 1;
    }
    const auto n = cell_count(run_.num_requests);
    out_.stated_count = n.value_or(0);
    constexpr std::int64_t kMaxLogged = 2 * kMaxSimulatedRequests;
    out_.requests["limit"] = kMaxLogged;
    out_.count = std::min(n.value_or(kMaxLogged), kMaxLogged);
  }

  /// Sets the kind of arrivals; each of several engines has its share.
  void arrivals() {
    const auto rate = cell_number(run_.rate_rps);
    const auto users = cell_count(run_.concurrency);
    const bool limited = run_.arrival == "concurrency" || (run_.arrival == "offline" && users);
    if (limited) {
      if (!users) throw NotExpressed{"a closed loop of an unknown number of users"};
      // An engine kept at its maximum number of sequences: all requests wait from the start, and
      // the figures state this maximum per engine.
      if (client_.full_engine) {
        out_.arrivals = ServedArrivals::kAtOnce;
        out_.users = *users;
        out_.scale = settings_.replicas;
        settings_.keys["engine"]["max_num_seqs"] = *users;
        return;
      }
      out_.arrivals = ServedArrivals::kClosed;
      settings_.replicas =
          static_cast<std::int32_t>(std::min<std::int64_t>(settings_.replicas, *users));
      out_.users = (*users + settings_.replicas / 2) / settings_.replicas;
      out_.scale = static_cast<double>(*users) / static_cast<double>(out_.users);
      return;
    }
    out_.scale = settings_.replicas;
    constexpr double kAsFastAsPossible = 5000;
    if (run_.arrival == "offline" || run_.arrival == "burst" ||
        (rate && *rate >= kAsFastAsPossible) || plain_cell(run_.rate_rps) == "inf") {
      out_.arrivals = ServedArrivals::kAtOnce;
      return;
    }
    const bool ladder = std::any_of(run_.metrics.begin(), run_.metrics.end(),
                                    [](const auto& m) { return m.metric == "saturation_rate"; });
    if (!rate && ladder) {
      out_.arrivals = ServedArrivals::kAtOnce;
      out_.is_ladder = true;
      return;
    }
    if (!rate || *rate <= 0) throw NotExpressed{"arrivals without a rate or a log"};
    out_.arrivals = ServedArrivals::kOpen;
    out_.rate = *rate / settings_.replicas;
  }

  void open_gaps() {
    const std::string note = lower(run_.note);
    const bool constant =
        (run_.arrival == "constant" || run_.arrival == "trace") && !client_.exponential_constant;
    double cv = constant ? 0 : 1;
    if (const auto stated = behind(note, "gap cv")) cv = *stated;
    if (const auto burstiness = behind(note, "burstiness"); burstiness && *burstiness > 0) {
      cv = 1 / std::sqrt(*burstiness);
    }
    // With round-robin over n engines, an engine's gaps are sums of n gaps.
    cv /= std::sqrt(static_cast<double>(settings_.replicas));
    ordered_json& arrivals = out_.requests["arrivals"];
    constexpr double kMin = 0.02;
    if (cv < kMin) {
      arrivals = {{"kind", "fixed"}, {"rate", out_.rate}};
    } else if (cv == 1) {
      arrivals = {{"kind", "poisson"}, {"rate", out_.rate}};
    } else {
      arrivals = {{"kind", "gamma"}, {"rate", out_.rate}, {"cv", cv}};
    }
  }

  void lengths(const fs::path& log) {
    set_ = find_served_lengths(run_.workload);
    const std::string prompt_spread = lower(run_.input_spread);
    const std::string output_spread = lower(run_.output_spread);
    fs::path file = log;
    const bool of_set = is_in(prompt_spread, "dataset") ||
                        is_in(prompt_spread, "set, statistics") ||
                        is_in(prompt_spread, "per-request list") || prompt_spread.empty();
    if (file.empty() && set_ != nullptr && !set_->file.empty() && of_set) {
      const fs::path path = folders_.lengths / set_->file;
      if (is_file(path)) file = path;
    }
    if (!file.empty()) {
      ordered_json& pairs = out_.requests["lengths"];
      pairs["file"] = file.string();
      if (log.empty()) {
        for (const auto& [key, bound] : set_->bounds) pairs[key] = bound;
        const SetRows& rows = served_set_rows(file, *set_);
        const auto scale = [&](const char* key, double factor) {
          if (std::abs(factor - 1) > 0.005) out_.requests[key] = factor;
        };
        const auto prompt = cell_number(run_.input_tokens);
        if (prompt && *prompt >= 1 && rows.prompt_mean > 0) {
          scale("prompt_scale", *prompt / rows.prompt_mean);
        }
        const auto output = cell_number(run_.output_tokens);
        if (output && *output >= 1 && !rows.outputs.empty()) {
          scale("output_scale", output_factor(rows.outputs, *output, set_->cap));
        }
        if (set_->cap > 0) out_.requests["max_output_tokens"] = set_->cap;
      }
      return;
    }
    const auto shape = [](double p99, double mean) {
      return LengthShape{mean > 0 && p99 > 0 ? p99 / mean : generated_p99_per_mean()};
    };
    const ServedLengths none;
    const ServedLengths& set = set_ == nullptr ? none : *set_;
    LengthShape of_prompt = shape(set.prompt_p99, set.prompt_tokens);
    LengthShape of_output = shape(set.output_p99, set.output_tokens);
    of_output.cap = set.cap;
    // A different mean indicates a different selection from the data set.
    const auto is_selection = [](std::string_view cell, double mean) {
      constexpr double kMaxRatio = 1.25;
      const auto stated = cell_number(cell);
      return !stated || mean <= 0 || (*stated < mean * kMaxRatio && mean < *stated * kMaxRatio);
    };
    if (is_selection(run_.input_tokens, set.prompt_tokens) &&
        is_selection(run_.output_tokens, set.output_tokens)) {
      of_prompt.twentieths = set.prompt_twentieths;
      if (set.outputs_as_prompts) of_output.twentieths = set.prompt_twentieths;
    }
    ordered_json prompt = lengths_of(run_.input_tokens, prompt_spread, 1, of_prompt, out_.assumed);
    const auto of_set_mean = [&](double mean, const LengthShape& around, std::string_view what) {
      out_.assumed.push_back(
          fmt::format("{} of {:.0f} tokens on average: {}", what, mean, set.source));
      return lengths_around(mean, around);
    };
    if (prompt.is_null() && set.prompt_tokens > 0) {
      prompt = of_set_mean(set.prompt_tokens, of_prompt, "prompts");
    }
    if (prompt.is_null()) throw NotExpressed{"the lengths of prompts are not stated"};
    ordered_json output = lengths_of(run_.output_tokens, output_spread, 1, of_output, out_.assumed);
    if (output.is_null()) {
      for (const ServedMetric& m : run_.metrics) {
        if (m.metric == "output_len" && m.stat == "mean" && m.value >= 1) {
          output = lengths_around(m.value, of_output);
        }
      }
    }
    if (output.is_null() && set.output_tokens > 0) {
      output = of_set_mean(set.output_tokens, of_output, "outputs");
    }
    if (output.is_null()) throw NotExpressed{"the lengths of outputs are not stated"};
    if (output.is_number_integer() && may_stop(output_spread)) {
      output = stopping_outputs(output.get<double>());
    }
    out_.requests["prompt_tokens"] = prompt;
    out_.requests["output_tokens"] = output;
    if (set.cap > 0 && output.is_object()) out_.requests["max_output_tokens"] = set.cap;
  }

  /// Whether requests of one output length end at different lengths, because their client does not
  /// ignore the end of a sequence.
  [[nodiscard]] bool may_stop(const std::string& output_spread) const {
    if (out_.arrivals != ServedArrivals::kClosed || !output_spread.starts_with("fixed")) {
      return false;
    }
    const bool is_stated = is_in(output_spread, "ignore") || is_in(output_spread, "equal") ||
                           is_in(run_.note, "ignore");
    if (generates_all(run_)) return false;
    const bool is_known =
        is_named(client_, run_.workload, run_.note) || !is_in(run_.not_stated, "client tool");
    return !is_stated && !(is_known && client_.ignores_eos);
  }

  /// Number of requests of the run, as stated in the table, else the default of its client.
  [[nodiscard]] std::optional<std::int64_t> stated_requests() const {
    if (const auto stated = cell_count(run_.num_requests)) return stated;
    for (const ServedCount& count : client_.counts) {
      if (is_in(lower(run_.workload), count.workload) && is_in(lower(run_.gpu), count.gpu)) {
        return count.requests;
      }
    }
    return std::nullopt;
  }

  void count() {
    const auto stated = stated_requests();
    const auto engines = static_cast<std::int64_t>(std::llround(out_.scale));
    if (stated) {
      out_.stated_count = std::max<std::int64_t>(1, *stated / std::max<std::int64_t>(1, engines));
    }
    std::int64_t n = out_.stated_count;
    // Shared prefixes are cold only at the start: each occurs several times.
    constexpr std::int64_t kTimes = 6;
    const std::int64_t groups = shared_prompts(run_.workload).groups;
    if (n == 0) {
      // The whole run if all of its requests count: per user the number that scripts send.
      out_.is_whole =
          out_.arrivals == ServedArrivals::kClosed && client_.window == MeasureWindow::kAll;
      if (out_.users > 0) {
        constexpr std::int64_t kMin = 20;
        n = std::max({kMin, client_.requests_per_user * out_.users, kTimes * groups});
      } else if (const auto seconds = point_seconds(); seconds && out_.rate > 0) {
        n = std::max<std::int64_t>(1, std::llround(*seconds * out_.rate));
        if (n <= kMaxSimulatedRequests) {
          out_.is_whole = true;
          out_.until = Seconds{*seconds};
        }
      } else {
        n = kDefaultRequests;
      }
    }
    std::int64_t max_requests = kMaxSimulatedRequests;
    // A window that begins with the run and ends with its queue needs all of its requests.
    if (out_.users > 0 && client_.window != MeasureWindow::kQueued) {
      max_requests = std::max(
          {kDefaultRequests, (client_.requests_per_user + 1) * out_.users, kTimes * groups});
    }
    if (out_.is_ladder) n = std::min(n, kDefaultRequests);
    if (n > max_requests || out_.is_ladder) {
      n = std::min(n, max_requests);
      out_.is_whole = false;
    }
    out_.count = n;
    out_.requests["count"] = n;
    ordered_json& arrivals = out_.requests["arrivals"];
    if (out_.arrivals == ServedArrivals::kClosed) {
      const std::int64_t users = std::min(out_.users, n);
      // Clients keep a fixed number of requests in flight; users share one list of requests.
      arrivals = {{"kind", "closed"}, {"users", users}, {"shared", true}};
      // The last user starts when all others have sent their first requests.
      const double ramp = client_.send_time.count() * static_cast<double>(users);
      if (ramp > 0) arrivals["ramp"] = fmt::format("{:g} s", ramp);
      const double turn = client_.turn_time.count();
      if (turn > 0) out_.requests["think"] = fmt::format("{:g} s", turn);
    } else {
      arrivals = {{"kind", "fixed"}, {"rate", kAtOnceRate}};
    }
  }

  /// "360 s per point": the time for which a client sends requests.
  [[nodiscard]] std::optional<double> point_seconds() const {
    const std::string text = lower(run_.workload);
    const auto at = text.find(" s per point");
    if (at == std::string::npos) return std::nullopt;
    const auto blank = text.find_last_of(' ', at - 1);
    return cell_number(text.substr(blank + 1, at - blank - 1));
  }

  /// The stated means are those of the run's requests, not of an underlying distribution.
  void stratify() {
    const auto varies = [&](const char* key) {
      const auto lengths = out_.requests.find(key);
      return lengths != out_.requests.end() && lengths->is_object();
    };
    if (varies("lengths") || varies("prompt_tokens") || varies("output_tokens")) {
      out_.requests["stratified_lengths"] = true;
    }
  }

  /// max_tokens that the client sends.
  void declare() {
    if (!client_.declares_output && set_ != nullptr && set_->cap > 0) {
      out_.requests["declared_tokens"] = set_->cap;
    } else {
      out_.requests["declared_tokens"] = "output";
    }
  }

  void repeat_prompts() {
    const SharedPrompts shared = shared_prompts(run_.workload);
    std::int64_t distinct = shared.groups * shared.each;
    constexpr std::int64_t kInferencePerf = 100;  // 10 groups of 10 prompts
    if (distinct == 0 && client_.repeats_prompts) distinct = kInferencePerf;
    if (distinct == 0) return;
    if (out_.count > distinct) {
      out_.requests["distinct_prompts"] = distinct;
      return;
    }
    const auto prompt = out_.requests.find("prompt_tokens");
    if (shared.prefix > 0 && prompt != out_.requests.end() && prompt->is_number_integer() &&
        prompt->get<std::int64_t>() > shared.prefix) {
      out_.requests["shared_prefix"] = {{"prompts", shared.groups}, {"tokens", shared.prefix}};
      *prompt = prompt->get<std::int64_t>() - shared.prefix;
    }
  }

  const ServedRun& run_;
  const ServedClient& client_;
  ServedSettings& settings_;
  const ServedFolders& folders_;
  const ServedLengths* set_ = nullptr;
  ServedWorkload out_{};
};

}  // namespace

ServedWorkload served_workload(const ServedRun& run, const ServedClient& client,
                               ServedSettings& settings, const ServedFolders& folders) {
  return WorkloadMapping{run, client, settings, folders}.map();
}

}  // namespace kvsim
