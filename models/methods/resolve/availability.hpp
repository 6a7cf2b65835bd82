#pragma once

// Which software a user can run a method in. The rows of the catalogue list it.

#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// `software` is one of known_software(). `as` is the option, class or repository, with the version
/// that documents it; empty if nothing has to be set.
struct Availability {
  std::string software;
  std::string as;
};

/// Where the method with that name can be run; empty if no released software is known to have it,
/// as for a composition ("h2o+store=int8"). Errors: InputError if the name is unknown.
[[nodiscard]] std::vector<Availability> availability_of(const std::string& method);

/// "vLLM" for "vllm", …; "research code" for "research".
[[nodiscard]] std::string_view software_title(std::string_view software);

/// "vLLM (0.6.4: --kv-cache-dtype fp8_e4m3), kvpress (SnapKVPress)"; "none known" without any.
[[nodiscard]] std::string availability_text(const std::vector<Availability>& available);
/// Only the titles: "kvpress, research code".
[[nodiscard]] std::string availability_titles(const std::vector<Availability>& available);

}  // namespace kvsim
