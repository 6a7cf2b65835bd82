#pragma once

// One self-contained HTML file: it contains style, scripts, the chart library and the data. A
// content security policy forbids it to load anything.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvsim {

/// A sentence of the findings at the top of the page.
struct PageSentence {
  enum class Tone { kPlain, kFits, kFails };
  std::string text;
  Tone tone = Tone::kPlain;
};

struct Page {
  std::string title;
  std::string lead{};                     // below the title: the scenario's question
  std::vector<PageSentence> sentences{};  // readable without scripts
  std::string summary{};                  // as on the terminal, lines of text
  nlohmann::ordered_json data{};          // input of report.js
};

/// The whole file. Equal pages give equal bytes. All texts are displayed as text: markup in them is
/// escaped, and the data cannot end their script block.
[[nodiscard]] std::string page_text(const Page& page);

/// `document` escaped for <script>: JSON in ASCII that parses back to the same document, without
/// "<", ">" and "&". Invalid UTF-8 becomes U+FFFD.
[[nodiscard]] std::string script_json(const nlohmann::ordered_json& document);

/// `text` escaped for an element or a quoted attribute.
[[nodiscard]] std::string html_escaped(std::string_view text);

/// An embedded file of this folder, by its name without extension: "charts". Errors: ContractError
/// for an unknown name.
[[nodiscard]] std::string_view page_asset(std::string_view name);

/// `form` with each {{name}} replaced by part(name).
using PagePart = std::function<std::string(std::string_view name)>;
[[nodiscard]] std::string filled(std::string_view form, const PagePart& part);

/// The beginning of a page, to the end of its <head>. `title` and `style` are already escaped;
/// `policy` is appended to script-src 'unsafe-inline' in the content security policy.
[[nodiscard]] std::string page_head(std::string_view title, std::string_view style,
                                    std::string_view policy = {});
/// The chart library and the scripts that all pages share, as <script> elements.
[[nodiscard]] std::string page_libraries();

}  // namespace kvsim
