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

/// Lines of a text, streamed through a buffer; "\n" and "\r\n" end one, the end of the text too.
class LineReader {
 public:
  LineReader(std::istream& in, std::string name);
  /// The next line without its end, valid until the next call; false at the end of the text. A
  /// UTF-8 byte order mark in front of the first is left out. Errors: InputError for a line of more
  /// than 64 MiB, for UTF-16 or UTF-32, and for a text that stops being readable.
  bool next(std::string_view& line);
  /// Of the line last given, from 1.
  [[nodiscard]] std::int64_t number() const { return number_; }
  /// Whether that line ended with a newline; a truncated file has none.
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::string place() const;  // "FILE:LINE"

 private:
  bool fill();  // false: the text has ended

  std::istream& in_;
  std::string name_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of what has been read and not been given
  std::size_t end_ = 0;
  std::int64_t number_ = 0;
  bool ended_ = false;
};

/// Errors: InputError at `place` if `line` holds a NUL byte or is not UTF-8.
void check_text(std::string_view line, const std::string& place);

/// `text` between double quotes, shortened, what is not printable as \xNN: for messages.
[[nodiscard]] std::string in_quotes(std::string_view text);
/// `text` without blanks and tabs at its ends.
[[nodiscard]] std::string_view trimmed(std::string_view text);

/// All of `text` as a whole number; decimals are taken if they are zeros ("374.0").
[[nodiscard]] std::optional<std::int64_t> parse_whole(std::string_view text);
/// All of `text`, a decimal number with or without exponent, times 10^`digits`, rounded to the
/// nearest: exact wherever there is no exponent. nullopt for what is no finite number (nan, inf)
/// and for what 64 bits cannot hold.
[[nodiscard]] std::optional<std::int64_t> parse_scaled(std::string_view text, int digits);

/// Collects the requests of a trace and keeps the account of its bad records.
class RequestSink {
 public:
  /// `file`: what messages call it; the trace is called by it without folder.
  RequestSink(std::string file, RequestFormat format, const ReadOptions& options);

  /// Reads one record: calls `read`, which ends in add(). What it throws as InputError is one bad
  /// record, passed over as long as the options allow.
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
  /// `arrival` in the sink's own time, which may start anywhere; see finish(). Errors: InputError
  /// at `place()` where it is earlier than the last one's, unless the options sort; ContractError
  /// in lengths.
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
  /// Notes the keys of a record that are not used, each once; a near miss of a known one is an
  /// error (Field::other_keys).
  void note_other_keys(const Field& record, std::initializer_list<std::string_view> keys);
  /// Room for so many requests.
  void expect(std::size_t requests) { trace_.requests.reserve(requests); }

  [[nodiscard]] const ReadOptions& options() const { return options_; }
  [[nodiscard]] RequestTrace& trace() { return trace_; }

  /// Puts what is there in order of time although some requests wait for others; for readers that
  /// add sessions one after the other under `sort`.
  void put_in_order();

  /// The trace, in order of time; `rebase`: its first arrival becomes 0. Errors: InputError if
  /// there is no request, or the last comes later than kLongestTrace.
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
