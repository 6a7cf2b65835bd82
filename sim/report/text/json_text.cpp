#include "sim/report/text/json_text.hpp"

#include <algorithm>

namespace kvsim {
namespace {

using nlohmann::ordered_json;

bool is_plain(const ordered_json& value) {
  return value.is_array() && std::none_of(value.begin(), value.end(), [](const ordered_json& item) {
           return item.is_object() || (item.is_array() && !is_plain(item));
         });
}

/// A row of a table: an object of scalars in an array.
bool is_row(const ordered_json& value) {
  return value.is_object() &&
         std::none_of(value.begin(), value.end(),
                      [](const ordered_json& item) { return item.is_structured(); });
}

void dump(const ordered_json& value, std::size_t indent, std::string& out, bool in_array = false) {
  const bool object = value.is_object();
  if (value.empty() || !value.is_structured() || is_plain(value) || (in_array && is_row(value))) {
    out += value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    return;
  }
  out += object ? "{" : "[";
  bool first = true;
  for (const auto& item : value.items()) {
    out += first ? "\n" : ",\n";
    first = false;
    out.append(indent + 2, ' ');
    if (object) {
      out += ordered_json(item.key()).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
      out += ": ";
    }
    dump(item.value(), indent + 2, out, !object);
  }
  out += "\n";
  out.append(indent, ' ');
  out += object ? "}" : "]";
}

}  // namespace

std::string to_file_text(const ordered_json& document) {
  std::string out;
  dump(document, 0, out);
  out += '\n';
  return out;
}

}  // namespace kvsim
