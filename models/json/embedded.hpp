#pragma once

#include <span>
#include <string_view>

namespace kvsim::embedded {

/// A data file compiled into the program by kvsim_embed (cmake/KvsimEmbed.cmake).
struct EmbeddedFile {
  std::string_view name;  // base name without extension
  std::string_view text;
};

}  // namespace kvsim::embedded
