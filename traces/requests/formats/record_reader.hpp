#pragma once

// Shared by the readers of request traces: lines, numbers, and the count of bad records.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <istream>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "traces/requests/formats/read_requests.hpp"

namespace kvsim {

/// The largest time a trace may reach, in seconds: the clock's 64-bit picoseconds end at 9.22e6.
inline constexpr std::int64_t kLongestTrace = 9'000'000;
inline constexpr std::int64_t kPicosecondsPerSecond = 1'000'000'000'000;

/// Lines of a text, streamed through a buffer. A line ends with "\n", "\r\n" or the end of the
/// text.
class LineReader {
 public:
  LineReader(std::istream& in, std::string name);
  /// Reads the next line, without its line end, valid until the next call; false at the end of the
  /// text. Skips a UTF-8 byte order mark at the start. Errors: InputError for a line of more than
  /// 64 MiB, for UTF-16 or UTF-32, and for a text that becomes unreadable.
  bool next(std::string_view& line);
  /// Number of the last line read, from 1.
  [[nodiscard]] std::int64_t number() const { return number_; }
  /// Whether the last line ended with a newline; that of a truncated file does not.
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::string place() const;  // "FILE:LINE"

 private:
  bool fill();  // returns false at the end of the text

  std::istream& in_;
  std::string name_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // start of the data that was read but not yet returned
  std::size_t end_ = 0;
  std::int64_t number_ = 0;
  bool ended_ = false;
};

/// Errors: InputError at `place` if `line` contains a NUL byte or is not UTF-8.
void check_text(std::string_view line, const std::string& place);

/// Returns `text` in double quotes for messages, shortened, with unprintable bytes as \xNN.
[[nodiscard]] std::string in_quotes(std::string_view text);
/// Returns `text` without leading and trailing blanks and tabs.
[[nodiscard]] std::string_view trimmed(std::string_view text);

/// Parses all of `text` as a whole number; accepts decimals if they are zeros ("374.0").
[[nodiscard]] std::optional<std::int64_t> parse_whole(std::string_view text);
/// Parses all of `text`, a decimal number with or without exponent, times 10^`digits`, rounded to
/// the nearest: exact if there is no exponent. nullopt for text that is not a finite number (nan,
/// inf) and for numbers that exceed 64 bits.
[[nodiscard]] std::optional<std::int64_t> parse_scaled(std::string_view text, int digits);

/// Collects the requests of a trace and counts its bad records.
class RequestSink {
 public:
  /// `file`: its name in messages; its name without folder is the trace's name.
  RequestSink(std::string file, RequestFormat format, const ReadOptions& options);

  /// Reads one record by calling `read`, which ends in add(). An InputError that it throws is one
  /// bad record, skipped as far as the options allow.
  template <class Read>
  void record(Read&& read) {
    const std::size_t before = trace_.prefix_ids.size();
    try {
      std::forward<Read>(read)();
    } catch (const InputError& error) {
      trace_.prefix_ids.resize(before);
      pass_over(error);
    }
  }
  /// `arrival`: in the sink's own time with any origin; see finish(). Errors: InputError at
  /// `place()` if it is earlier than the previous arrival, unless the options sort; ContractError
  /// for invalid lengths.
  template <class Place>
  void add(const Request& request, const Place& place) {
    if (request.after < 0) {
      if (request.arrival < last_) {
        if (!options_.sort) out_of_order(place(), request.arrival);
        sorted_ = false;
      }
      if (request.arrival > last_) last_ = request.arrival;
    }
    if (trace_.requests.size() == trace_.requests.capacity()) grow();
    trace_.requests.push_back(request);
  }
  /// Records the unused keys of a record, each once; a near miss of a known key is an error
  /// (Field::other_keys).
  void note_other_keys(const Field& record, std::initializer_list<std::string_view> keys);
  /// Reserves room for `requests` requests.
  void expect(std::size_t requests) { trace_.requests.reserve(requests); }

  [[nodiscard]] const ReadOptions& options() const { return options_; }
  [[nodiscard]] RequestTrace& trace() { return trace_; }

  /// Sorts the requests so far by time although some wait for others; for readers that add sessions
  /// one after another under `sort`.
  void put_in_order();

  /// Returns the trace, sorted by time; `rebase`: its first arrival becomes 0. Errors: InputError
  /// if there is no request, or if the last one arrives later than kLongestTrace.
  [[nodiscard]] RequestTrace finish(bool rebase);

 private:
  void pass_over(const InputError& error);
  void grow();
  [[noreturn]] void out_of_order(const std::string& place, SimTime arrival) const;
  void note_quantum();

  std::string file_;
  RequestTrace trace_;
  ReadOptions options_;
  SimTime last_;
  bool sorted_ = true;
  std::set<std::string> other_keys_;
};

}  // namespace kvsim
