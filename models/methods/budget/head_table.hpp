#pragma once

#include <string>
#include <vector>

namespace kvsim {

using HeadTable = std::vector<std::vector<double>>;  // [layer][KV head]

/// Reads head scores in DuoAttention's released format (full_attention_heads.tsv): one line per
/// layer with one number per KV head, separated by blanks; empty lines are skipped. Errors:
/// InputError "PATH:LINE: …" if the file cannot be read, a word is not a finite number, or layers
/// differ in their number of heads.
[[nodiscard]] HeadTable read_head_table(const std::string& path);

}  // namespace kvsim
