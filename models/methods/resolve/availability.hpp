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

/// `Availability::as` in parts: "0.30: --kv-cache-dtype nvfp4".
struct AvailabilityParts {
  std::string version;  // "0.30": since that release; "main", "pull request"; empty: any
  std::string option;   // "--kv-cache-dtype nvfp4"

  /// False: the method is in no release.
  [[nodiscard]] bool is_released() const;
};
[[nodiscard]] AvailabilityParts parts_of(const Availability& one);

/// Where the method with that name can be run; empty if no released software is known to have it,
/// as for a composition ("h2o+store=int8"). Errors: InputError if the name is unknown.
[[nodiscard]] std::vector<Availability> availability_of(const std::string& method);

/// "vLLM" for "vllm", …; "research code" for "research".
[[nodiscard]] std::string_view software_title(std::string_view software);

/// "vLLM (0.6.4: --kv-cache-dtype fp8_e4m3), kvpress (SnapKVPress)"; "none known" without any.
[[nodiscard]] std::string availability_text(const std::vector<Availability>& available);
/// Only the titles: "kvpress, research code".
[[nodiscard]] std::string availability_titles(const std::vector<Availability>& available);
/// Titles with versions: "vLLM 0.30, SGLang"; "vLLM (main)" if it is in no release.
[[nodiscard]] std::string availability_versions(const std::vector<Availability>& available);

}  // namespace kvsim
