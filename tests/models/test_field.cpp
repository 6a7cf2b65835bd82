#include <fstream>
#include <string>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using test::rel;

std::string complaint_of(auto&& read) {
  try {
    read();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}

Field json(std::string_view text) { return Field::parse(text, "a.json"); }

TEST_CASE("an error of a field names file, pointer, expected and actual value") {
  const Field f = json(R"({"batch": {"size": 0, "a/b": 1.7}, "bandwidth": "4.8 TB"})");
  CHECK(complaint_of([&] { (void)f.at("batch").at("size").integer(1, 4096); }) ==
        "a.json: /batch/size: expected an integer in [1, 4096], got 0");
  CHECK(complaint_of([&] { (void)f.at("bandwidth").bandwidth(); }) ==
        "a.json: /bandwidth: expected a bandwidth such as \"4.8 TB/s\", got \"4.8 TB\"");
  CHECK(complaint_of([&] { (void)f.at("batch").at("a/b").integer(0, 9); }) ==
        "a.json: /batch/a~1b: expected an integer in [0, 9], got 1.7");
  CHECK(complaint_of([&] { (void)f.at("gpu"); }) == "a.json: /gpu: missing");
}

TEST_CASE("unknown keys are errors that name the nearest known one") {
  const Field f = json(R"({"max_tokns": 3})");
  CHECK(complaint_of([&] {
          f.allow_only({"max_tokens", "size"});
        }) == "a.json: /max_tokns: unknown key; did you mean \"max_tokens\"?");
}

TEST_CASE("input that a plain parser accepts silently is refused") {
  CHECK(complaint_of([] { (void)json(R"({"a": 1, "a": 2})"); }) ==
        "a.json: key \"a\" is given twice in one object");
  CHECK(complaint_of([] { (void)json(std::string(200, '[')); }).find("nested deeper") !=
        std::string::npos);
  for (const char* text : {"", "{", "{} x", "{\"a\": }", "{\"a\": 01}", "\xff", "{\"a\": 1e999}"}) {
    INFO(text);
    CHECK(complaint_of([&] { (void)json(text); }).starts_with("a.json: not valid JSON: "));
  }
}

TEST_CASE("comments are allowed") {
  CHECK(json("{\"a\": 1 // one\n /* two */ }").at("a").integer(0, 9) == 1);
}

TEST_CASE("scalars are read as written and never converted silently") {
  const Field f =
      json(R"({"i": 2.0, "big": 18446744073709551615, "s": "x", "d": "fp16", "n": null})");
  CHECK(f.at("i").integer(0, 9) == 2);
  CHECK_THROWS_AS((void)f.at("big").integer(0, INT64_MAX), InputError);
  CHECK_THROWS_AS((void)f.at("s").number(0, 1), InputError);
  CHECK_THROWS_AS((void)f.at("s").boolean(), InputError);
  CHECK_THROWS_AS((void)f.at("i").string(), InputError);
  CHECK(f.at("d").dtype() == Dtype::kFp16);
  CHECK_FALSE(f.find("n").has_value());
  CHECK_FALSE(f.find("absent").has_value());
}

TEST_CASE("one or more") {
  const Field f = json(R"({"one": 1, "more": [1, 2], "none": []})");
  CHECK(f.at("one").one_or_more().size() == 1);
  CHECK(f.at("more").one_or_more()[1].pointer() == "/more/1");
  CHECK_THROWS_AS((void)f.at("none").one_or_more(), InputError);
}

TEST_CASE("array items and object members are read in linear time") {
  // With 300,000 of each, this took minutes when the end of each object visited all siblings.
  constexpr int kMany = 300'000;
  std::string list = "[", object = "{";
  for (int i = 0; i < kMany; ++i) {
    list += i > 0 ? ",{}" : "{}";
    object += fmt::format("{}\"{}\": {{\"a\": [1]}}", i > 0 ? "," : "", i);
  }
  CHECK(json(list + "]").items().size() == kMany);
  CHECK(json(object + "}").members().size() == kMany);
}

TEST_CASE("messages quote at most a line of the input") {
  const std::string huge(1 << 20, 'k');
  for (const std::string& text :
       {fmt::format("{{\"{0}\": 1, \"{0}\": 2}}", huge), fmt::format("{{\"a\": {}}}", huge),
        fmt::format("{{\"a\": \"{}", huge),
        fmt::format("{{\"a\": 1e{}}}", std::string(1 << 20, '9')),
        fmt::format("{{\"a\": \"{}\xFF\"}}", huge)}) {
    const std::string complaint = complaint_of([&] { (void)json(text); });
    CHECK(complaint.size() < 600);
    CHECK(complaint.find("json.exception") == std::string::npos);
  }
  const Field one = json(fmt::format("{{\"{0}\": {{\"a\": \"{0}\"}}}}", huge));
  CHECK(complaint_of([&] { one.allow_only({"b"}); }).size() < 600);
  CHECK(complaint_of([&] { (void)one.at(huge).at("a").integer(0, 1); }).size() < 600);
}

TEST_CASE("an unreadable file is reported") {
  CHECK(complaint_of([] {
          (void)Field::read_file("/nonexistent/x.json");
        }).starts_with("/nonexistent/x.json: cannot be read"));
}

}  // namespace
}  // namespace kvsim
