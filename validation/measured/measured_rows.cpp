#include "validation/measured/measured_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/folder.hpp"

namespace kvsim {
namespace {

constexpr double kMaxMicroseconds = 1e9;
constexpr std::int64_t kLargest = 1'000'000'000'000;

/// Thrown for a row without a call in the model: its reason is counted, and reading continues.
struct LeftOut {
  std::string reason;
};

/// Reads the cells of one row by column name.
class Cells {
 public:
  Cells(const CsvTable& table, std::size_t row) : table_{table}, row_{row} {}
  [[nodiscard]] const std::string& text(std::string_view column) const {
    return table_.text(row_, table_.index(column));
  }
  /// A count or a size: formulas use double, but measured values are whole numbers.
  [[nodiscard]] double whole(std::string_view column, std::int64_t low = 0) const {
    return static_cast<double>(table_.integer(row_, table_.index(column), low, kLargest));
  }
  /// As whole; `otherwise` if the column is missing or the cell empty.
  [[nodiscard]] double whole_or(std::string_view column, double otherwise) const {
    return table_.has(column) && !text(column).empty() ? whole(column) : otherwise;
  }
  [[nodiscard]] std::int32_t count(std::string_view column) const {
    return static_cast<std::int32_t>(table_.integer(row_, table_.index(column), 1, 1 << 24));
  }
  [[nodiscard]] double microseconds(std::string_view column) const {
    return table_.number(row_, table_.index(column), 1e-6, kMaxMicroseconds);
  }
  [[nodiscard]] bool has(std::string_view column) const { return table_.has(column); }

 private:
  const CsvTable& table_;
  std::size_t row_;
};

KernelFormat format_of(std::string_view word) {
  try {
    return parse_kernel_format(word);
  } catch (const InputError&) {
    throw LeftOut{fmt::format("format {}", word)};
  }
}

KernelFormat attention_format_of(const Cells& c) {
  return format_of(fmt::format("{}/{}", c.text("dtype"), c.text("kv_dtype")));
}

using Rows = std::vector<MeasuredRow>;

bool is_decode(const Cells& c) {
  const std::string& phase = c.text("phase");
  if (phase != "decode" && phase != "prefill") throw LeftOut{fmt::format("phase {}", phase)};
  return phase == "decode";
}

void read_decode(const Cells& c, MeasuredRow row, Rows& out) {
  const DecodeAttentionCall call{.batch = c.whole("batch_size", 1),
                                 .kv_len = c.whole("kv_len", 1),
                                 .q_heads = c.count("num_q_heads"),
                                 .kv_heads = c.count("num_kv_heads"),
                                 .head_dim = c.count("head_dim")};
  row.format = attention_format_of(c);
  row.shape = fmt::format("{}/{}x{}", call.q_heads, call.kv_heads, call.head_dim);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_prefill(const Cells& c, MeasuredRow row, Rows& out) {
  const double tokens = c.whole("seq_len", 1);
  double prefix = c.whole_or("kv_prefix_len", 0);
  // LLMServingSim's column includes the new tokens: it is never below seq_len, and times depend
  // only on it.
  if (row.stack.starts_with("llmservingsim") && prefix >= tokens) prefix -= tokens;
  const PrefillAttentionCall call{.batch = c.whole("batch_size", 1),
                                  .new_tokens = tokens,
                                  .prefix = prefix,
                                  .q_heads = c.count("num_q_heads"),
                                  .kv_heads = c.count("num_kv_heads"),
                                  .head_dim = c.count("head_dim")};
  row.format = attention_format_of(c);
  row.shape = fmt::format("{}/{}x{}", call.q_heads, call.kv_heads, call.head_dim);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_mla(const Cells& c, MeasuredRow row, Rows& out) {
  const MlaCall call{.decode = is_decode(c),
                     .batch = c.whole("batch_size", 1),
                     .seq_len = c.whole("seq_len", 1),
                     .heads = c.count("num_heads_per_gpu")};
  row.format = attention_format_of(c);
  row.shape = fmt::format("{} heads", call.heads);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_gemm(const Cells& c, MeasuredRow row, Rows& out) {
  const GemmCall call{.m = c.whole("m", 1), .n = c.whole("n", 1), .k = c.whole("k", 1)};
  row.format = format_of(c.text("dtype"));
  row.shape = fmt::format("{}x{}", call.n, call.k);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_grouped(const Cells& c, MeasuredRow row, Rows& out) {
  const double experts = c.whole("num_local_experts", 1);
  const double per_expert = c.whole("tokens_per_expert", 0);
  const double hidden = c.whole("hidden_size", 1);
  const double inter = c.whole("intermediate_size", 1);
  const bool masked = c.text("phase") == "decode";
  row.format = format_of("fp8_block");
  row.shape = fmt::format("{}x{}", hidden, inter);
  const double rows = std::max(1.0, per_expert) * experts;
  GroupedGemmCall call{.rows = rows,
                       .experts = experts,
                       .rows_padded = rows,
                       .n = 2 * inter,
                       .k = hidden,
                       .masked = masked};
  row.call = call;
  row.us = c.microseconds("up_proj_us");
  out.push_back(row);
  call.n = hidden;
  call.k = inter;
  row.call = call;
  row.us = c.microseconds("down_proj_us");
  out.push_back(std::move(row));
}

/// Whether a source's times with expert parallelism include work that engines skip. The collector
/// of aiconfigurator for SGLang 0.5.10 sends rows of other GPUs' experts to expert 0
/// (collector/sglang/collect_moe.py: topk_ids.clamp(min=0)); SGLang's kernel skips them.
bool computes_remote_rows(std::string_view stack) { return stack == "aic-sglang-0.5.10"; }

void read_moe(const Cells& c, MeasuredRow row, Rows& out) {
  const std::string& spread = c.text("distribution");
  double skew = 0;
  constexpr std::string_view kPower = "power_law_";
  if (spread.starts_with(kPower)) {
    const std::string word = spread.substr(kPower.size());
    char* end = nullptr;
    skew = std::strtod(word.c_str(), &end);
    if (end == word.c_str() || *end != 0 || !(skew >= 0) || skew > 10) {
      throw LeftOut{fmt::format("distribution {}", spread)};
    }
  } else if (spread != "balanced" && spread != "uniform") {
    throw LeftOut{fmt::format("distribution {}", spread)};
  }
  const MoeCall call{.tokens = c.whole("num_tokens", 1),
                     .hidden = c.whole("hidden", 1),
                     .inter = c.whole("inter", 1),
                     .top_k = c.whole("topk", 1),
                     .experts = c.whole("num_experts", 1),
                     .tp = c.whole("tp", 1),
                     .ep = c.whole("ep", 1),
                     .skew = skew};
  if (call.ep > 1 && computes_remote_rows(row.stack)) {
    throw LeftOut{"a benchmark that computes the rows of other GPUs' experts"};
  }
  row.format = format_of(c.text("dtype"));
  // Per GPU: width of its slice of an expert, and its number of experts.
  row.shape = fmt::format("{}x{}x{}", call.hidden, call.inter / call.tp, call.experts / call.ep);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_elementwise(const Cells& c, MeasuredRow row, Rows& out) {
  const std::string& op = c.text("op");
  const double tokens = c.whole("num_tokens", 1);
  const double hidden = tokens * c.whole("hidden", 1);
  row.format = format_of(c.text("dtype"));
  const double width = row.format.operand_bytes;
  ElementwiseCall call{.rows = tokens};
  const auto contains = [&](std::string_view word) { return op.find(word) != std::string::npos; };
  if (contains("layernorm") || contains("norm")) {
    call.kind = ElementwiseKind::kNorm;
    call.bytes_read = call.bytes_written = hidden * width;
  } else if (contains("rope")) {
    const double heads = c.whole("q_heads_per_gpu", 1) + c.whole("kv_heads_per_gpu", 1);
    call.kind = ElementwiseKind::kRope;
    call.bytes_read = call.bytes_written = tokens * heads * c.whole("head_dim", 1) * width;
  } else if (contains("act")) {
    const Llm* llm = nullptr;
    try {
      llm = &find_llm(c.text("model"));
    } catch (const InputError&) {  // a model outside the catalogue: assume a gated MLP, like most
                                   // models
    }
    const bool gated = llm == nullptr || llm->layers.front().mlp.gated;
    const double inter = tokens * c.whole("intermediate_per_gpu", 1);
    call.kind = ElementwiseKind::kActivation;
    call.bytes_read = (gated ? 2 : 1) * inter * width;
    call.bytes_written = inter * width;
  } else if (op == "add") {
    call.kind = ElementwiseKind::kAdd;
    call.bytes_read = 2 * hidden * width;
    call.bytes_written = hidden * width;
  } else if (contains("emb")) {
    call.kind = ElementwiseKind::kEmbedding;
    call.bytes_read = call.bytes_written = hidden * width;
  } else {
    throw LeftOut{fmt::format("operator {}", op)};
  }
  // Models of the same width use the same kernel.
  row.shape = fmt::format("{} {}", static_cast<int>(call.kind),
                          (call.bytes_read + call.bytes_written) / tokens);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_collective(const Cells& c, MeasuredRow row, Rows& out) {
  struct Name {
    std::string_view word;
    CollectiveKind kind;
  };
  constexpr std::array<Name, 9> kNames{{{"all_reduce", CollectiveKind::kAllReduce},
                                        {"allreduce", CollectiveKind::kAllReduce},
                                        {"all_gather", CollectiveKind::kAllGather},
                                        {"reduce_scatter", CollectiveKind::kReduceScatter},
                                        {"alltoall", CollectiveKind::kAllToAll},
                                        {"all_to_all", CollectiveKind::kAllToAll},
                                        {"broadcast", CollectiveKind::kBroadcast},
                                        {"send_recv", CollectiveKind::kSendReceive},
                                        {"sendrecv", CollectiveKind::kSendReceive}}};
  const std::string& op = c.text("op");
  const auto* const found =
      std::find_if(kNames.begin(), kNames.end(), [&](const Name& name) { return name.word == op; });
  if (found == kNames.end()) throw LeftOut{fmt::format("collective {}", op)};
  const double gpus = c.whole("num_gpus", 2);
  const CollectiveCall call{.kind = found->kind,
                            .bytes = c.whole("size_bytes", 1),
                            .gpus = gpus,
                            .gpus_per_node = c.whole_or("gpus_per_node", 8)};
  // Only the bytes matter; the type named by some sources is unreliable.
  row.format = format_of("bf16");
  row.stack = fmt::format("{}:{}", row.stack, c.has("impl") ? c.text("impl") : "");
  // Octaves of the message size.
  int octave = 0;
  std::frexp(call.bytes, &octave);
  row.shape = fmt::format("{} octave {}", op, octave);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_recurrence(const Cells& c, MeasuredRow row, Rows& out) {
  const RecurrenceCall call{.decode = is_decode(c),
                            .batch = c.whole("batch_size", 1),
                            .tokens = c.whole("seq_len", 1),
                            .heads = c.whole("num_state_heads", 1),
                            .key_dim = c.whole("key_dim", 1),
                            .value_dim = c.whole("value_dim", 1)};
  row.format = format_of(c.text("rule"));
  row.shape = fmt::format("{} {}x{}x{}", call.decode ? "decode" : "prefill", call.heads,
                          call.key_dim, call.value_dim);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_convolution(const Cells& c, MeasuredRow row, Rows& out) {
  const ConvolutionCall call{.tokens = c.whole("num_tokens", 1),
                             .channels = c.whole("conv_channels", 1)};
  row.format = format_of(c.text("dtype"));
  row.shape = fmt::format("{}", call.channels);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_index_scores(const Cells& c, MeasuredRow row, Rows& out) {
  const double tokens = c.whole("seq_len", 1);
  const double prefix = c.whole_or("kv_prefix_len", 0);
  const bool decode = is_decode(c);
  const IndexScoresCall call{.decode = decode,
                             .batch = c.whole("batch_size", 1),
                             .queries = tokens,
                             .keys = decode ? prefix + tokens : prefix + (tokens + 1) / 2,
                             .heads = c.whole("num_index_heads", 1),
                             .head_dim = c.whole("index_head_dim", 1)};
  row.format = format_of(c.text("dtype"));
  row.shape = fmt::format("{} {} {}", c.text("phase"), call.queries, prefix);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_index_choice(const Cells& c, MeasuredRow row, Rows& out) {
  const IndexChoiceCall call{.rows = c.whole("num_rows", 1),
                             .length = c.whole("row_length", 1),
                             .chosen = c.whole("index_topk", 1)};
  row.format = format_of("fp32");
  row.shape = fmt::format("{} of {}", call.chosen, call.length);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

void read_sparse_attention(const Cells& c, MeasuredRow row, Rows& out) {
  const bool decode = is_decode(c);
  const double tokens = c.whole("seq_len", 1);
  const double seen = c.whole_or("kv_prefix_len", 0) + tokens;
  const double max = c.whole("index_topk", 1);
  // Shorter prompts need no selection, and engines run other kernels.
  if (!decode && seen <= max) throw LeftOut{"a prompt of which all is attended to"};
  const SparseAttentionCall call{.decode = decode,
                                 .batch = c.whole("batch_size", 1),
                                 .queries = tokens,
                                 .chosen = std::min(max, decode ? seen : max),
                                 .heads = c.whole("num_heads_per_gpu", 1)};
  row.format = attention_format_of(c);
  row.shape = fmt::format("{} {} heads {}", c.text("phase"), call.heads, seen);
  row.call = call;
  row.us = c.microseconds("time_us");
  out.push_back(std::move(row));
}

struct Layout {
  KernelOp op;
  std::vector<std::string_view> columns;  // columns that distinguish it from other layouts
  void (*read)(const Cells& cells, MeasuredRow row, Rows& out);
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {KernelOp::kSparseAttention,
       {"phase", "num_heads_per_gpu", "index_topk", "time_us"},
       read_sparse_attention},
      {KernelOp::kRecurrence, {"phase", "rule", "num_state_heads", "time_us"}, read_recurrence},
      {KernelOp::kConvolution, {"conv_channels", "num_tokens", "time_us"}, read_convolution},
      {KernelOp::kIndexScores,
       {"phase", "num_index_heads", "index_head_dim", "time_us"},
       read_index_scores},
      {KernelOp::kIndexChoice, {"num_rows", "row_length", "index_topk"}, read_index_choice},
      {KernelOp::kMla, {"phase", "num_heads_per_gpu", "seq_len", "time_us"}, read_mla},
      {KernelOp::kDecodeAttention,
       {"num_q_heads", "num_kv_heads", "kv_len", "time_us"},
       read_decode},
      {KernelOp::kPrefillAttention,
       {"num_q_heads", "num_kv_heads", "seq_len", "time_us"},
       read_prefill},
      {KernelOp::kGroupedGemm, {"num_local_experts", "up_proj_us", "down_proj_us"}, read_grouped},
      {KernelOp::kMoe, {"num_experts", "topk", "inter", "time_us"}, read_moe},
      {KernelOp::kGemm, {"m", "n", "k", "time_us"}, read_gemm},
      {KernelOp::kElementwise, {"op", "num_tokens", "hidden", "time_us"}, read_elementwise},
      {KernelOp::kCollective, {"op", "num_gpus", "size_bytes", "time_us"}, read_collective}};
  return all;
}

/// Returns the catalogue's GPU for a label, or nullptr if there is none. Labels may end in remarks:
/// "(vidur)", "?".
const Gpu* gpu_of(std::string label) {
  while (!label.empty() && label.back() == '?') label.pop_back();
  try {
    return &find_gpu(label);
  } catch (const InputError&) {
    return nullptr;
  }
}

}  // namespace

MeasuredFile read_measured(const CsvTable& table) {
  MeasuredFile out{.path = table.place()};
  const auto layout = std::find_if(layouts().begin(), layouts().end(), [&](const Layout& l) {
    return table.has("gpu") && table.has("source") &&
           std::all_of(l.columns.begin(), l.columns.end(),
                       [&](std::string_view column) { return table.has(column); });
  });
  if (layout == layouts().end()) {
    out.skipped = "no kernel's columns";
    return out;
  }
  out.op = layout->op;
  std::map<std::string, const Gpu*> gpus;
  const std::size_t gpu_column = table.index("gpu");
  const std::size_t source = table.index("source");
  for (std::size_t i = 0; i < table.rows(); ++i) {
    MeasuredRow row{.line = table.line(i),
                    .gpu_label = table.text(i, gpu_column),
                    .stack = table.text(i, source)};
    const auto [known, fresh] = gpus.try_emplace(row.gpu_label, nullptr);
    if (fresh) known->second = gpu_of(row.gpu_label);
    row.gpu = known->second;
    try {
      if (row.gpu == nullptr) throw LeftOut{fmt::format("GPU {}", row.gpu_label)};
      layout->read(Cells{table, i}, std::move(row), out.rows);
    } catch (const LeftOut& reason) {
      ++out.left_out[excerpt(reason.reason)];
    }
  }
  return out;
}

MeasuredFile read_measured(const std::filesystem::path& path) {
  return read_measured(CsvTable::read_file(path));
}

std::vector<MeasuredFile> read_all_measured(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> paths;
  if (std::error_code status; std::filesystem::is_directory(path, status)) {
    paths = files_in(path, ".csv");
    if (paths.empty()) throw InputError{path.string(), "CSV files", "none"};
  } else {
    paths.push_back(path);
  }
  std::vector<MeasuredFile> out;
  for (const auto& one : paths) out.push_back(read_measured(one));
  const bool has_timings = std::any_of(
      out.begin(), out.end(), [](const MeasuredFile& file) { return file.skipped.empty(); });
  if (!has_timings) {
    throw InputError{path.string(),
                     "kernel timings: CSV with the columns gpu, source, time_us and a kernel's "
                     "shape (docs/measured-data.md)",
                     out.size() == 1 ? "a file with other columns" : "files with other columns"};
  }
  return out;
}

std::uint64_t shape_hash(const std::string& shape) {
  // FNV-1a.
  std::uint64_t hash = 1469598103934665603ULL;
  for (const char c : shape) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash ^ (hash >> 29);
}

bool is_held_out(const MeasuredRow& row) { return shape_hash(row.shape) % 5 == 0; }

}  // namespace kvsim
