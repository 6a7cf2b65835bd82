#include "traces/requests/formats/servegen.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/number_text.hpp"
#include "models/units/text_file.hpp"
#include "traces/requests/formats/record_reader.hpp"
#include "traces/requests/random_stream.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTraceEnd = "-trace.csv";
constexpr std::string_view kDatasetEnd = "-dataset.json";
constexpr double kUsualWindow = 600.0;
constexpr double kMaxExpected = 1e8;  // requests, as for generators

std::optional<double> parse_double(std::string_view text) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [at, error] = number_from_chars(text.data(), end, value);
  if (error != std::errc{} || at != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// Returns the client's name: the path without either ending.
std::string stem_of(const fs::path& path) {
  std::string text = path.string();
  for (const std::string_view end : {kTraceEnd, kDatasetEnd}) {
    if (text.ends_with(end)) return text.substr(0, text.size() - end.size());
  }
  return text;
}

ServeGenWindow read_window(std::string_view line, const std::string& place) {
  check_text(line, place);
  std::vector<std::string_view> cells;
  for (;;) {
    const std::size_t comma = line.find(',');
    cells.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    line.remove_prefix(comma + 1);
  }
  if (cells.size() != 6) {
    throw InputError{place, "6 columns: window start, rate, CV, pattern and its two parameters",
                     fmt::format("{}", cells.size())};
  }
  const auto number = [&](std::size_t i, std::string_view what, double max) {
    const auto value = parse_double(cells[i]);
    if (!value || *value < 0.0 || *value > max) {
      throw InputError{fmt::format("{}: {}", place, what),
                       fmt::format("a number in [0, {:g}]", max), in_quotes(cells[i])};
    }
    return *value;
  };
  ServeGenWindow window{.start = number(0, "window start", 1.0 * kLongestTrace),
                        .rate = number(1, "rate", 1e6)};
  const bool shaped = cells[3] == "Gamma" || cells[3] == "Weibull";
  if (!shaped && !cells[3].empty() && cells[3] != "Exponential" && cells[3] != "Poisson") {
    throw InputError{fmt::format("{}: pattern", place),
                     "Gamma, Weibull, Exponential, Poisson or nothing", in_quotes(cells[3])};
  }
  // Only the form of CV and scale is checked: they follow from shape and rate. A pattern without
  // parameters may omit them.
  if (shaped || !cells[2].empty()) (void)number(2, "CV", 1e6);
  if (shaped || !cells[5].empty()) (void)number(5, "pattern parameter 2", 1e12);
  if (!shaped && cells[4].empty()) return window;
  const double shape = number(4, "pattern parameter 1", 1e6);
  if (!shaped) return window;
  window.gaps = cells[3] == "Gamma" ? GapKind::kGamma : GapKind::kWeibull;
  window.shape = shape;
  if (shape < 1e-3) {
    throw InputError{fmt::format("{}: pattern parameter 1", place), "a shape of at least 0.001",
                     in_quotes(cells[4])};
  }
  return window;
}

/// Reads "{5: 0.25, 7: 0.75}", a dict as printed by Python.
LengthSpec read_dict(const Field& field, std::int64_t low) {
  LengthSpec spec{.kind = LengthKind::kEmpirical};
  const std::string text = field.string();
  const char* at = text.data();
  const char* end = at + text.size();
  const auto blanks = [&] {
    while (at < end && *at == ' ') ++at;
  };
  const auto mark = [&](char c) {
    blanks();
    if (at < end && *at == c) {
      ++at;
      blanks();
      return true;
    }
    return false;
  };
  const auto wrong = [&] {
    field.fail(fmt::format("expected a dict {{length: probability, ...}}, got {} at character {}",
                           in_quotes({at, static_cast<std::size_t>(end - at)}),
                           at - text.data() + 1));
  };
  if (!mark('{')) wrong();
  double mass = 0.0;
  while (!mark('}')) {
    if (!spec.values.empty() && !mark(',')) wrong();
    std::int64_t length = 0;
    const auto [after, error] = std::from_chars(at, end, length);
    if (error != std::errc{} || length < low || length > kMaxTokens) wrong();
    at = after;
    if (!mark(':')) wrong();
    double weight = 0.0;
    const auto [behind, problem] = number_from_chars(at, end, weight);
    if (problem != std::errc{} || !(weight >= 0.0) || weight > 1e12) wrong();
    at = behind;
    spec.values.push_back(static_cast<std::int32_t>(length));
    spec.weights.push_back(weight);
    mass += weight;
  }
  if (at != end) wrong();
  if (!(mass > 0.0)) field.fail("expected probabilities of more than 0 in all");
  return spec;
}

std::vector<ServeGenLengths> read_lengths(const fs::path& path) {
  std::vector<ServeGenLengths> all;
  const Field root = Field::read_file(path);
  for (const auto& [key, window] : root.members()) {
    const auto start = parse_double(key);
    if (!start || *start < 0.0 || *start > 1.0 * kLongestTrace) {
      window.fail("expected a window's start in seconds as its key");
    }
    window.allow_only({"input_tokens", "output_tokens", "reason_ratio"});
    all.push_back({.start = *start,
                   .input = read_dict(window.at("input_tokens"), 1),
                   .output = read_dict(window.at("output_tokens"), 0)});
  }
  if (all.empty()) throw InputError{path.string(), "at least one window of lengths", "none"};
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  return all;
}

/// Returns the duration of a window: until the next; the last is as long as the previous one.
double seconds_of(const std::vector<ServeGenWindow>& windows, std::size_t i) {
  if (i + 1 < windows.size()) return windows[i + 1].start - windows[i].start;
  return i > 0 ? windows[i].start - windows[i - 1].start : kUsualWindow;
}

/// Checked before any request is drawn: a line of rates can require more memory than a machine has.
void refuse_too_many(const fs::path& place, double expected) {
  if (expected > kMaxExpected) {
    throw InputError{place.string(),
                     fmt::format("rates that make at most {:g} requests", kMaxExpected),
                     fmt::format("{:.3g}", expected)};
  }
}

double unit_gap(const ServeGenWindow& window, RandomStream& stream) {
  switch (window.gaps) {
    case GapKind::kExponential:
      return stream.exponential();
    case GapKind::kGamma:
      return stream.gamma(window.shape);
    case GapKind::kWeibull:
      return stream.weibull(window.shape);
  }
  return stream.exponential();
}

void draw_client(const ServeGenClient& client, std::uint64_t seed, std::int32_t session,
                 std::vector<Request>& out) {
  RandomStream gaps{seed, client.name + "/arrivals"};
  RandomStream inputs{seed, client.name + "/prompt_tokens"};
  RandomStream outputs{seed, client.name + "/output_tokens"};
  std::vector<LengthSampler> input_of;
  std::vector<LengthSampler> output_of;
  for (const ServeGenLengths& lengths : client.lengths) {
    input_of.emplace_back(lengths.input);
    output_of.emplace_back(lengths.output);
  }
  double owed = -1.0;  // remainder of the present gap, in expected requests; below 0: not drawn
  std::size_t spread = 0;
  const auto& windows = client.windows;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const ServeGenWindow& window = windows[i];
    if (window.rate <= 0.0) continue;
    double left = window.rate * seconds_of(windows, i);
    double at = window.start;
    if (owed < 0.0) owed = unit_gap(window, gaps);
    for (; owed <= left; owed = unit_gap(window, gaps)) {
      left -= owed;
      at += owed / window.rate;
      while (spread + 1 < client.lengths.size() && client.lengths[spread + 1].start <= at) ++spread;
      Request r;
      r.arrival = to_sim_time(Seconds{at});
      r.prompt_tokens = input_of[spread].draw(inputs);
      r.output_tokens = output_of[spread].draw(outputs);
      r.session = session;
      out.push_back(r);
    }
    owed -= left;
  }
}

}  // namespace

double expected_requests(const ServeGenClient& client) {
  double sum = 0.0;
  for (std::size_t i = 0; i < client.windows.size(); ++i) {
    sum += client.windows[i].rate * seconds_of(client.windows, i);
  }
  return sum;
}

bool looks_like_servegen(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return true;
  const std::string name = path.filename().string();
  return name.ends_with(kTraceEnd) || name.ends_with(kDatasetEnd);
}

ServeGenClient read_servegen_client(const fs::path& path, RequestSink& sink) {
  const std::string stem = stem_of(path);
  const fs::path trace = stem + std::string{kTraceEnd};
  expect_regular_file(trace);
  std::ifstream in{trace, std::ios::binary};
  if (!in) throw InputError{fmt::format("{}: cannot be read", trace.string())};
  ServeGenClient client{.name = fs::path{stem}.filename().string()};
  LineReader lines{in, trace.string()};
  std::string_view line;
  while (lines.next(line)) {
    if (trimmed(line).empty()) continue;
    sink.record([&] {
      const ServeGenWindow window = read_window(line, lines.place());
      if (!client.windows.empty()) {
        const ServeGenWindow& before = client.windows.back();
        if (window.start <= before.start) {
          throw InputError{fmt::format("{}: window start", lines.place()),
                           fmt::format("more than the {:g} s before it", before.start),
                           fmt::format("{:g}", window.start)};
        }
      }
      client.windows.push_back(window);
    });
  }
  if (client.windows.empty()) {
    throw InputError{trace.string(), "at least one window",
                     sink.trace().skipped == 0 ? "none" : "only bad records"};
  }
  refuse_too_many(trace, expected_requests(client));
  client.lengths = read_lengths(stem + std::string{kDatasetEnd});
  return client;
}

RequestTrace read_servegen(const fs::path& path, const ReadOptions& options) {
  std::vector<fs::path> clients;
  std::error_code status;
  if (fs::is_directory(path, status)) {
    for (fs::directory_iterator entry{path, status}, end; !status && entry != end;
         entry.increment(status)) {
      if (entry->path().filename().string().ends_with(kTraceEnd)) clients.push_back(entry->path());
    }
    if (status)
      throw InputError{fmt::format("{}: cannot be read: {}", path.string(), status.message())};
    std::sort(clients.begin(), clients.end());
    if (clients.empty()) {
      throw InputError{path.string(), "a folder of *-trace.csv and *-dataset.json", "none in it"};
    }
  } else {
    clients.push_back(path);
  }
  RequestSink sink{path.string(), RequestFormat::kServeGen, options};
  std::vector<Request> drawn;
  double expected = 0.0;  // total of the clients so far
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const ServeGenClient client = read_servegen_client(clients[i], sink);
    expected += expected_requests(client);
    refuse_too_many(path, expected);
    draw_client(client, options.seed, static_cast<std::int32_t>(i), drawn);
  }
  std::stable_sort(drawn.begin(), drawn.end(),
                   [](const Request& a, const Request& b) { return a.arrival < b.arrival; });
  sink.expect(drawn.size());
  for (const Request& r : drawn) sink.add(r, [&] { return path.string(); });
  sink.trace().notes.push_back(
      fmt::format("requests are drawn from the distributions of {} client{} (seed {})",
                  clients.size(), clients.size() == 1 ? "" : "s", options.seed));
  return sink.finish(false);
}

}  // namespace kvsim
