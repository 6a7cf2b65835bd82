#include "sim/explorer/page/explorer_page.hpp"

// The assembler includes the module as a file; a C++ array would be millions of tokens.
asm(".section .rodata\n"
    "kvsim_explorer_core_begin:\n"
    ".incbin \"" KVSIM_EXPLORER_CORE
    "\"\n"
    "kvsim_explorer_core_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" {
[[gnu::visibility("hidden")]] extern const char kvsim_explorer_core_begin[];
[[gnu::visibility("hidden")]] extern const char kvsim_explorer_core_end[];
}

namespace kvsim {

std::string_view explorer_core() {
  return {kvsim_explorer_core_begin,
          static_cast<std::size_t>(kvsim_explorer_core_end - kvsim_explorer_core_begin)};
}

}  // namespace kvsim
