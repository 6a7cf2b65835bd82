#include "sim/explorer/page/explorer_page.hpp"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "models/json/embedded.hpp"
#include "models/units/check.hpp"
#include "sim/explorer/explore.hpp"
#include "sim/report/html/page.hpp"
#include "sim/report/text/version.hpp"

namespace kvsim {
namespace embedded {
std::span<const EmbeddedFile> explorer_files();  // generated: CMakeLists.txt of this folder
}

namespace {

/// Encodes `bytes` according to RFC 4648, section 4.
std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t here = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      group = group << 8U | (i < here ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      out += i <= here ? kDigits[group >> (18U - 6U * i) & 63U] : '=';
    }
  }
  return out;
}

std::string_view own_file(std::string_view name) {
  const auto files = embedded::explorer_files();
  const auto found = std::find_if(files.begin(), files.end(),
                                  [name](const auto& file) { return file.name == name; });
  KVSIM_CHECK(found != files.end(), "no file {} of the explorer", name);
  return found->text;
}

/// The replacement of `{{name}}` in explorer.html.
std::string part_of(std::string_view name) {
  if (name == "head") {
    return page_head("kvsim explorer: what fits, and how fast",
                     fmt::format("{}{}", page_asset("style"), own_file("explorer_style")),
                     " 'wasm-unsafe-eval' blob:; worker-src blob:");
  }
  if (name == "libraries") return page_libraries();
  if (name == "version") return html_escaped(kvsim_version());
  if (name == "catalogue") return script_json(explorer_catalogue());
  if (name == "packed") return base64(explorer_core());
  const auto files = embedded::explorer_files();
  const bool own = std::any_of(files.begin(), files.end(),
                               [name](const auto& file) { return file.name == name; });
  return std::string{own ? own_file(name) : page_asset(name)};
}

}  // namespace

std::string explorer_page() {
  KVSIM_CHECK(!explorer_core().empty(), "this build has no core for browsers");
  return filled(own_file("explorer_page"), part_of);
}

}  // namespace kvsim
