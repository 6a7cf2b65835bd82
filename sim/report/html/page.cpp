#include "sim/report/html/page.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "models/json/embedded.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace embedded {
std::span<const EmbeddedFile> page_files();  // generated: CMakeLists.txt of this folder
}

namespace {

std::string_view class_of(PageSentence::Tone tone) {
  switch (tone) {
    case PageSentence::Tone::kFits:
      return " class=\"fits\"";
    case PageSentence::Tone::kFails:
      return " class=\"fails\"";
    case PageSentence::Tone::kPlain:
      break;
  }
  return "";
}

std::string sentences_html(const std::vector<PageSentence>& sentences) {
  std::string out;
  for (const PageSentence& one : sentences) {
    out += fmt::format("<li{}>{}</li>\n", class_of(one.tone), html_escaped(one.text));
  }
  return out;
}

/// The replacement of `{{name}}` in page.html.
std::string part_of(const Page& page, std::string_view name) {
  if (name == "head") return page_head(html_escaped(page.title), page_asset("style"));
  if (name == "libraries") return page_libraries();
  if (name == "title") return html_escaped(page.title);
  if (name == "lead") return html_escaped(page.lead);
  if (name == "sentences") return sentences_html(page.sentences);
  if (name == "summary") return html_escaped(page.summary);
  if (name == "data") return script_json(page.data);
  return std::string{page_asset(name)};
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string script_json(const nlohmann::ordered_json& document) {
  // ASCII: line separators and directional marks are also escaped.
  const std::string plain =
      document.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  std::string out;
  out.reserve(plain.size() + plain.size() / 64);
  // Outside strings, JSON does not contain these characters.
  for (const char c : plain) {
    if (c == '<' || c == '>' || c == '&') {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += c;
    }
  }
  return out;
}

std::string_view page_asset(std::string_view name) {
  const auto files = embedded::page_files();
  const auto found = std::find_if(files.begin(), files.end(),
                                  [name](const auto& file) { return file.name == name; });
  KVSIM_CHECK(found != files.end(), "no asset {} of pages", name);
  return found->text;
}

std::string filled(std::string_view form, const PagePart& part) {
  // One pass: replacements are not expanded again.
  std::string out;
  std::size_t at = 0;
  while (true) {
    const std::size_t open = form.find("{{", at);
    if (open == std::string_view::npos) break;
    const std::size_t close = form.find("}}", open);
    KVSIM_CHECK(close != std::string_view::npos, "a page's form: a place without an end");
    out += form.substr(at, open - at);
    out += part(form.substr(open + 2, close - open - 2));
    at = close + 2;
  }
  out += form.substr(at);
  return out;
}

std::string page_head(std::string_view title, std::string_view style, std::string_view policy) {
  return filled(page_asset("head"), [&](std::string_view name) {
    if (name == "title") return std::string{title};
    if (name == "policy") return std::string{policy};
    KVSIM_CHECK(name == "style", "head.html has a place {}", name);
    return std::string{style};
  });
}

std::string page_libraries() {
  return filled(page_asset("libraries"),
                [](std::string_view name) { return std::string{page_asset(name)}; });
}

std::string page_text(const Page& page) {
  return filled(page_asset("page"), [&](std::string_view name) { return part_of(page, name); });
}

}  // namespace kvsim
