#pragma once

// One self-contained HTML file: it has style, scripts, the chart library and the data, and a
// content security policy forbids it to fetch anything.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvsim {

/// A sentence of what came out, as the page says it first.
struct PageSentence {
  enum class Tone { kPlain, kFits, kFails };
  std::string text;
  Tone tone = Tone::kPlain;
};

struct Page {
  std::string title;
  std::string lead{};                     // under the title: the scenario's question
  std::vector<PageSentence> sentences{};  // readable without scripts
  std::string summary{};                  // as the terminal shows it, lines of text
  nlohmann::ordered_json data{};          // what report.js draws
};

/// The whole file. The same page gives the same bytes. Whatever texts hold, they are shown as text:
/// markup in them is escaped, and the data cannot end their script block.
[[nodiscard]] std::string page_text(const Page& page);

/// `document` escaped for <script>: JSON that parses back to the same, without "<", ">", "&" and
/// the line separators at which some script parsers end a line. Bytes that are not UTF-8 become
/// U+FFFD.
[[nodiscard]] std::string script_json(const nlohmann::ordered_json& document);

/// `text` escaped for an element or a quoted attribute.
[[nodiscard]] std::string html_escaped(std::string_view text);

/// A file of this folder as it is embedded, by its name without extension: "charts". Errors:
/// ContractError on a name that is not there.
[[nodiscard]] std::string_view page_asset(std::string_view name);

/// `form` with each {{name}} replaced by what `part` gives for it.
using PagePart = std::function<std::string(std::string_view name)>;
[[nodiscard]] std::string filled(std::string_view form, const PagePart& part);

/// A page's beginning, to the end of its <head>: `title` and `style` are already escaped, `policy`
/// is what scripts may do beyond being part of the page.
[[nodiscard]] std::string page_head(std::string_view title, std::string_view style,
                                    std::string_view policy = {});
/// The chart library and the scripts that all pages share, as <script> elements.
[[nodiscard]] std::string page_libraries();

}  // namespace kvsim
