#include "models/json/field.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/units_parse.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

constexpr std::uintmax_t kLargestFile = 64U << 20U;
constexpr int kDeepestNesting = 100;
constexpr std::size_t kLongestShown = 60;

std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kLongestShown) text = text.substr(0, kLongestShown) + "...";
  return text;
}

/// JSON pointer escapes of RFC 6901.
std::string escaped(std::string_view token) {
  std::string out;
  for (const char c : token) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

/// Turns the parser's own words ("[json.exception.parse_error.101] parse error at line 3, column 4:
/// syntax error …") into "line 3, column 4: syntax error …".
std::string reason(const json::exception& error) {
  std::string_view text = error.what();
  if (const auto at = text.find("line "); at != std::string_view::npos)
    text.remove_prefix(at);
  else if (const auto bracket = text.find("] "); bracket != std::string_view::npos)
    text.remove_prefix(bracket + 2);
  return std::string{text};
}

/// Refuses what the parser would let pass in silence: bottomless nesting and repeated keys. Those
/// it counts, for speed: an object of fewer keys than were read had one twice.
class Watch {
 public:
  explicit Watch(const std::string& place) : place_{place} {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        check_depth(depth);
        keys_.push_back(0);
        break;
      case json::parse_event_t::array_start:
        check_depth(depth);
        break;
      case json::parse_event_t::object_end:
        repeated_ = repeated_ || parsed.size() != keys_.back();
        keys_.pop_back();
        break;
      case json::parse_event_t::key:
        ++keys_.back();
        break;
      default:
        break;
    }
    return true;
  }
  [[nodiscard]] bool repeated() const { return repeated_; }

 private:
  void check_depth(int depth) const {
    if (depth > kDeepestNesting) {
      throw InputError{fmt::format("{}: nested deeper than {} levels", place_, kDeepestNesting)};
    }
  }
  const std::string& place_;
  std::vector<std::size_t> keys_;
  bool repeated_ = false;
};

/// Throws, naming the first key of `text` that one object has twice.
[[noreturn]] void name_repeated(std::string_view text, const std::string& place) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int /*depth*/, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second)
        throw InputError{fmt::format("{}: key \"{}\" is given twice in one object", place, key)};
    }
    return true;
  };
  [[maybe_unused]] const json again =
      json::parse(text, watch, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  throw InputError{fmt::format("{}: a key is given twice in one object", place)};
}

}  // namespace

struct Field::Document {
  json value;
  std::string place;
};

Field::Field(std::shared_ptr<const Document> document, const json* value, std::string pointer)
    : document_{std::move(document)}, value_{value}, pointer_{std::move(pointer)} {}

Field Field::root(json value, std::string place) {
  auto document = std::make_shared<Document>();  // not from {value, place}: braces make an array
  document->value = std::move(value);
  document->place = std::move(place);
  const json* top = &document->value;
  return Field{std::move(document), top, ""};
}

const std::string& Field::file() const { return document_->place; }

Field Field::parse(std::string_view text, std::string place) {
  try {
    Watch watch{place};
    json value = json::parse(text, std::ref(watch), /*allow_exceptions=*/true,
                             /*ignore_comments=*/true);
    if (watch.repeated()) name_repeated(text, place);
    return root(std::move(value), std::move(place));
  } catch (const json::exception& error) {
    throw InputError{fmt::format("{}: not valid JSON: {}", place, reason(error))};
  }
}

Field Field::read_file(const std::filesystem::path& path) {
  std::error_code status;
  const auto size = std::filesystem::file_size(path, status);
  if (status)
    throw InputError{fmt::format("{}: cannot be read: {}", path.string(), status.message())};
  if (size > kLargestFile) {
    throw InputError{fmt::format("{}: expected a JSON file of at most {} bytes, got {}",
                                 path.string(), kLargestFile, size)};
  }
  std::ifstream in{path, std::ios::binary};
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (!in) throw InputError{fmt::format("{}: cannot be read", path.string())};
  return parse(text, path.string());
}

Field Field::wrap(json value, std::string place) {
  return root(std::move(value), std::move(place));
}

bool Field::is_object() const { return value_->is_object(); }
bool Field::is_array() const { return value_->is_array(); }
bool Field::is_string() const { return value_->is_string(); }
bool Field::is_number() const { return value_->is_number(); }
bool Field::is_null() const { return value_->is_null(); }

void Field::allow_only(std::initializer_list<std::string_view> keys) const {
  if (!value_->is_object()) expected("an object");
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      unknown(key, std::vector<std::string>(keys.begin(), keys.end()));
  }
}

void Field::allow_only(std::span<const std::string> keys) const {
  if (!value_->is_object()) expected("an object");
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) unknown(key, keys);
  }
}

void Field::unknown(const std::string& key, std::span<const std::string> keys) const {
  const std::string near = nearest(key, keys);
  throw InputError{fmt::format("{}: {}/{}: unknown key{}", file(), pointer_, escaped(key),
                               near.empty() ? fmt::format(" ({})", fmt::join(keys, ", "))
                                            : fmt::format("; did you mean \"{}\"?", near))};
}

Field Field::child(const json& value, std::string_view token) const {
  std::string pointer;
  pointer.reserve(pointer_.size() + 1 + token.size());
  pointer += pointer_;
  pointer += '/';
  if (token.find_first_of("~/") == std::string_view::npos)
    pointer += token;
  else
    pointer += escaped(token);
  return Field{document_, &value, std::move(pointer)};
}

bool Field::has(std::string_view key) const {
  if (!value_->is_object()) expected("an object");
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

Field Field::at(std::string_view key) const {
  if (!value_->is_object()) expected("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) {
    throw InputError{fmt::format("{}: {}/{}: missing", file(), pointer_, escaped(key))};
  }
  return child(*found, key);
}

std::optional<Field> Field::find(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return at(key);
}

std::vector<std::pair<std::string, Field>> Field::members() const {
  if (!value_->is_object()) expected("an object");
  std::vector<std::pair<std::string, Field>> out;
  out.reserve(value_->size());
  for (const auto& [key, value] : value_->items()) out.emplace_back(key, child(value, key));
  return out;
}

std::vector<Field> Field::items() const {
  if (!value_->is_array()) expected("an array");
  std::vector<Field> out;
  out.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i)
    out.push_back(child((*value_)[i], std::to_string(i)));
  return out;
}

std::vector<Field> Field::one_or_more() const {
  if (value_->is_array()) {
    if (value_->empty()) expected("at least one value");
    return items();
  }
  return {*this};
}

std::int64_t Field::integer(std::int64_t low, std::int64_t high) const {
  const auto complain = [&] { expected(fmt::format("an integer in [{}, {}]", low, high)); };
  std::int64_t value = 0;
  if (value_->is_number_unsigned()) {
    const auto u = value_->get<std::uint64_t>();
    if (u > static_cast<std::uint64_t>(INT64_MAX)) complain();
    value = static_cast<std::int64_t>(u);
  } else if (value_->is_number_integer()) {
    value = value_->get<std::int64_t>();
  } else if (value_->is_number_float()) {
    const double d = value_->get<double>();
    if (!(std::abs(d) < 0x1p53) || d != std::floor(d)) complain();
    value = static_cast<std::int64_t>(d);
  } else {
    complain();
  }
  if (value < low || value > high) complain();
  return value;
}

double Field::number(double low, double high) const {
  const auto complain = [&] { expected(fmt::format("a number in [{}, {}]", low, high)); };
  if (!value_->is_number()) complain();
  const double value = value_->get<double>();
  if (!(value >= low && value <= high)) complain();
  return value;
}

bool Field::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

std::string Field::string() const {
  if (!value_->is_string()) expected("a string");
  return value_->get<std::string>();
}

std::string Field::choice(std::span<const std::string> words) const {
  if (!value_->is_string()) expected(fmt::format("one of {}", fmt::join(words, ", ")));
  const std::string word = value_->get<std::string>();
  for (const std::string& known : words) {
    if (known == word) return word;
  }
  const std::string near = nearest(word, words);
  expected(fmt::format("one of {}{}", fmt::join(words, ", "),
                       near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near)));
}

Dtype Field::dtype() const {
  if (value_->is_string()) {
    if (const auto parsed = parse_dtype(value_->get_ref<const std::string&>())) return *parsed;
  }
  std::vector<std::string> names;
  for (const auto& entry : kDtypes) names.emplace_back(entry.name);
  expected(fmt::format("one of {}", fmt::join(names, ", ")));
}

Bytes Field::bytes() const {
  if (value_->is_string()) {
    if (const auto parsed = parse_bytes(value_->get_ref<const std::string&>())) return *parsed;
  }
  expected("a size such as \"80 GiB\"");
}

BytesPerSecond Field::bandwidth() const {
  if (value_->is_string()) {
    if (const auto parsed = parse_bandwidth(value_->get_ref<const std::string&>())) return *parsed;
  }
  expected("a bandwidth such as \"4.8 TB/s\"");
}

FlopsPerSecond Field::flops() const {
  if (value_->is_string()) {
    if (const auto parsed = parse_flops(value_->get_ref<const std::string&>())) return *parsed;
  }
  expected("a rate such as \"312 TFLOP/s\"");
}

Seconds Field::duration() const {
  if (value_->is_string()) {
    if (const auto parsed = parse_duration(value_->get_ref<const std::string&>())) return *parsed;
  }
  expected("a time such as \"200 ms\"");
}

std::string Field::place() const {
  return pointer_.empty() ? file() : fmt::format("{}: {}", file(), pointer_);
}

void Field::expected(std::string_view what) const {
  throw InputError{place(), what, shown(*value_)};
}

void Field::fail(std::string_view complaint) const {
  throw InputError{fmt::format("{}: {}", place(), complaint)};
}

}  // namespace kvsim
