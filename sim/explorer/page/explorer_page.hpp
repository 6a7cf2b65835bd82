#pragma once

#include <string>
#include <string_view>

namespace kvsim {

/// The analytic core in WebAssembly (sim/explorer/wasm), compressed with gzip; empty where this
/// build has none: it was made without Emscripten.
[[nodiscard]] std::string_view explorer_core();

/// The explorer: one HTML file with the core, the catalogues, scripts and style in it, that needs
/// no network. The same build gives the same bytes. Errors: ContractError without a core.
[[nodiscard]] std::string explorer_page();

}  // namespace kvsim
