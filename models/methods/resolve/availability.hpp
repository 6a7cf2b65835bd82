#pragma once

// Software that implements a method, as listed in the rows of the catalogue.

#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// `software` is one of known_software(). `as` is the option, class or repository, with the version
/// that documents it; empty if no option has to be set.
struct Availability {
  std::string software;
  std::string as;
};

/// The parts of `Availability::as`: "0.30: --kv-cache-dtype nvfp4".
struct AvailabilityParts {
  std::string version;  // "0.30": since that release; "main", "pull request"; empty: any
  std::string option;   // "--kv-cache-dtype nvfp4"

  /// False if no release contains the method.
  [[nodiscard]] bool is_released() const;
};
[[nodiscard]] AvailabilityParts parts_of(const Availability& one);

/// Returns the software that implements the method `method`; empty if no released software is known
/// to do so, as for a composition ("h2o+store=int8"). Errors: InputError if the name is unknown.
[[nodiscard]] std::vector<Availability> availability_of(const std::string& method);

/// "vLLM" for "vllm", …; "research code" for "research".
[[nodiscard]] std::string_view software_title(std::string_view software);

/// "vLLM (0.6.4: --kv-cache-dtype fp8_e4m3), kvpress (SnapKVPress)"; "none known" if empty.
[[nodiscard]] std::string availability_text(const std::vector<Availability>& available);
/// Only the titles: "kvpress, research code".
[[nodiscard]] std::string availability_titles(const std::vector<Availability>& available);
/// Titles with versions: "vLLM 0.30, SGLang"; "vLLM (main)" if no release contains it.
[[nodiscard]] std::string availability_versions(const std::vector<Availability>& available);

}  // namespace kvsim
