#include "models/json/field.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/json/python_numbers.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/text_file.hpp"
#include "models/units/units_parse.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

constexpr std::uintmax_t kLargestFile = 64U << 20U;
constexpr std::size_t kDeepestNesting = 100;
constexpr std::size_t kLongestShown = 60;

std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_string() && value.get_ref<const std::string&>().size() > kLongestShown) {
    return shown(json(excerpt(value.get_ref<const std::string&>(), kLongestShown - 5)));
  }
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Returns a pointer for messages; keys of the input may be arbitrarily long.
std::string shown_pointer(const std::string& pointer) {
  constexpr std::size_t kLongestPointer = 300;
  return excerpt(pointer, kLongestPointer);
}

/// Escapes a token for a JSON pointer (RFC 6901).
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

/// Shortens the parser's message ("[json.exception.parse_error.101] parse error at line 3, column
/// 4: syntax error ...") to "line 3, column 4: syntax error ...".
std::string reason(const json::exception& error) {
  constexpr std::size_t kLongestReason = 300;
  std::string_view text = error.what();
  if (const auto at = text.find("line "); at != std::string_view::npos)
    text.remove_prefix(at);
  else if (const auto bracket = text.find("] "); bracket != std::string_view::npos)
    text.remove_prefix(bracket + 2);
  return excerpt(text, kLongestReason);
}

/// Builds the parsed value in linear time. nlohmann's own builder either silently keeps the last of
/// repeated keys or, with a callback, visits all siblings at each object's end.
class Builder final : public nlohmann::json_sax<json> {
 public:
  Builder(std::string_view text, const std::string& place) : text_{text}, place_{place} {}
  [[nodiscard]] json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& value) override { return put(std::move(value)); }
  bool start_object(std::size_t /*size*/) override { return open(json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    const auto [at, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
    if (!is_new) {
      throw InputError{
          fmt::format("{}: key \"{}\" is given twice in one object", place_, excerpt(name))};
    }
    member_ = &at->second;
    return true;
  }
  bool parse_error(std::size_t at, const std::string& token,
                   const json::exception& error) override {
    // The parser does not report a position for a number that exceeds the range of double.
    if (dynamic_cast<const json::out_of_range*>(&error) != nullptr) {
      const std::string_view before = text_.substr(0, std::min(at, text_.size()));
      const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
      throw InputError{fmt::format("{}: not valid JSON: line {}, column {}", place_,
                                   1 + std::count(before.begin(), before.end(), '\n'),
                                   before.size() - line_start),
                       "a number that fits in a double, up to 1.8e308", excerpt(token)};
    }
    throw InputError{fmt::format("{}: not valid JSON: {}", place_, reason(error))};
  }

 private:
  json& place_for(json value) {
    json* at = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(nullptr);
      at = &open_.back()->back();
    } else if (!open_.empty()) {
      at = member_;
    }
    *at = std::move(value);
    return *at;
  }
  bool put(json value) {
    (void)place_for(std::move(value));
    return true;
  }
  bool open(json value) {
    if (open_.size() > kDeepestNesting) {
      throw InputError{fmt::format("{}: nested deeper than {} levels", place_, kDeepestNesting)};
    }
    open_.push_back(&place_for(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& place_;
  json root_;
  std::vector<json*> open_;  // valid: a container grows only while no member is open
  json* member_ = nullptr;   // value of the last key of the innermost object
};

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
  Builder builder{text, place};
  json::sax_parse(text, &builder, json::input_format_t::json, /*strict=*/true,
                  /*ignore_comments=*/true);
  json value = builder.take();
  return root(std::move(value), std::move(place));
}

Field Field::read_file(const std::filesystem::path& path) {
  return parse(read_text_file(path, kLargestFile), path.string());
}

Field Field::read_python_file(const std::filesystem::path& path) {
  return parse(without_python_numbers(read_text_file(path, kLargestFile)), path.string());
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

std::vector<std::string> Field::other_keys(std::initializer_list<std::string_view> keys) const {
  if (!value_->is_object()) expected("an object");
  const std::vector<std::string> known(keys.begin(), keys.end());
  std::vector<std::string> others;
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (!nearest(key, known).empty()) unknown(key, known);
    others.push_back(key);
  }
  return others;
}

void Field::unknown(const std::string& key, std::span<const std::string> keys) const {
  const std::string near = nearest(key, keys);
  throw InputError{fmt::format("{}: {}/{}: unknown key{}", file(), shown_pointer(pointer_),
                               excerpt(escaped(key)),
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
    throw InputError{
        fmt::format("{}: {}/{}: missing", file(), shown_pointer(pointer_), escaped(key))};
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
    // Equal values would repeat the same point. 1 and 1.0 are equal.
    const std::vector<Field> all = items();
    std::set<json> seen;
    for (const Field& item : all) {
      if (!seen.insert(*item.value_).second) {
        item.fail(fmt::format("{} is given twice", shown(*item.value_)));
      }
    }
    return all;
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
  expected("a time such as \"200 ms\", at most 9000000 s");
}

std::string Field::place() const {
  return pointer_.empty() ? file() : fmt::format("{}: {}", file(), shown_pointer(pointer_));
}

void Field::expected(std::string_view what) const {
  throw InputError{place(), what, shown(*value_)};
}

void Field::fail(std::string_view complaint) const {
  throw InputError{fmt::format("{}: {}", place(), complaint)};
}

void Field::repeats(const Field& first) const {
  fail(fmt::format("{} is given twice; {} means the same", shown(*value_),
                   shown_pointer(first.pointer_)));
}

std::string without_python_numbers(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kNumbers{
      {{"-Infinity", "     null"}, {"Infinity", "    null"}, {"NaN", "null"}}};
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string && c == '\\') {
      ++at;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '-' || c == 'I' || c == 'N')) {
      for (const auto& [number, null] : kNumbers) {
        if (std::string_view{text}.substr(at, number.size()) != number) continue;
        text.replace(at, number.size(), null);
        at += null.size() - 1;
        break;
      }
    }
  }
  return text;
}

}  // namespace kvsim
