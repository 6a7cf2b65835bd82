#pragma once

#include <string>
#include <string_view>

namespace kvsim {

/// The analytic core in WebAssembly (sim/explorer/wasm), compressed with gzip; empty if this build
/// was made without Emscripten.
[[nodiscard]] std::string_view explorer_core();

/// The explorer: one HTML file that contains the core, the catalogues, scripts and style and needs
/// no network. The output of a build is deterministic. Errors: ContractError without a core.
[[nodiscard]] std::string explorer_page();

}  // namespace kvsim
