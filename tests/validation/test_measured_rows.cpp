#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/work.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "validation/measured/measured_rows.hpp"

using namespace kvsim;

namespace {

MeasuredFile read(std::string_view text) { return read_measured(CsvTable::parse(text, "t.csv")); }

}  // namespace

TEST_CASE("measured rows: each layout is recognised by its columns") {
  const auto decode = read(
      "gpu,source,kernel,num_q_heads,num_kv_heads,head_dim,dtype,kv_dtype,batch_size,kv_len,"
      "time_us\nA100-SXM-80G,aic-vllm-0.14.0,fa,32,8,128,bf16,fp8,4,1000,12.5\n");
  REQUIRE(decode.op == KernelOp::kDecodeAttention);
  REQUIRE(decode.rows.size() == 1);
  const MeasuredRow& row = decode.rows[0];
  CHECK(row.gpu->name == "A100-80GB-SXM");
  CHECK(row.format.name == "bf16/fp8");
  CHECK(row.format.stored_bytes == 1);
  CHECK(row.us == 12.5);
  const KernelWork w = work_of(row.call, row.format);
  CHECK(w.flops == 4.0 * 4 * 1000 * 32 * 128);
  CHECK(w.bytes == 2.0 * 4 * 1000 * 8 * 128 + 2.0 * 4 * 32 * 128 * 2);

  const auto prefill = read(
      "gpu,source,kernel,num_q_heads,num_kv_heads,head_dim,dtype,kv_dtype,batch_size,seq_len,"
      "kv_prefix_len,time_us\nH100-SXM-80G,x,fa,32,8,128,bf16,bf16,1,3,2,1\n");
  REQUIRE(prefill.op == KernelOp::kPrefillAttention);
  // Three queries over 2 cached tokens: 3 + 4 + 5 keys.
  CHECK(work_of(prefill.rows[0].call, prefill.rows[0].format).flops == 4.0 * 12 * 32 * 128);

  CHECK(read("gpu,source,model,op,dtype,m,n,k,tensor_parallel,time_us\n"
             "A40,vidur,M,up,fp16,8,4096,11008,1,9\n")
            .op == KernelOp::kGemm);
  CHECK(read("gpu,source,impl,op,dtype,num_gpus,gpus_per_node,size_bytes,time_us\n"
             "A100-SXM-80G,n,nccl,all_reduce,fp16,8,8,1024,20\n")
            .op == KernelOp::kCollective);
  const auto grouped = read(
      "gpu,source,phase,num_local_experts,tokens_per_expert,hidden_size,intermediate_size,"
      "up_proj_us,down_proj_us\nH20-96G,infersim,prefill,4,64,2048,512,30,20\n");
  REQUIRE(grouped.rows.size() == 2);  // both projections
  CHECK(grouped.rows[0].us == 30);
  CHECK(std::get<GroupedGemmCall>(grouped.rows[0].call).n == 1024);  // gate and up
  CHECK(std::get<GroupedGemmCall>(grouped.rows[1].call).k == 512);
}

TEST_CASE("measured rows: kernels of mixers are recognised by their columns") {
  const auto scan = read(
      "gpu,source,rule,phase,batch_size,seq_len,num_state_heads,key_dim,value_dim,time_us\n"
      "h200,x,gated_delta,prefill,2,640,32,128,128,80\n"
      "h200,x,mamba,prefill,2,640,32,128,128,80\n"
      "h200,x,gated_delta,verify,2,640,32,128,128,80\n");
  REQUIRE(scan.op == KernelOp::kRecurrence);
  REQUIRE(scan.rows.size() == 1);
  CHECK_FALSE(std::get<RecurrenceCall>(scan.rows[0].call).decode);
  CHECK(scan.left_out.at("format mamba") == 1);
  CHECK(scan.left_out.at("phase verify") == 1);

  const auto taps =
      read("gpu,source,dtype,num_tokens,conv_channels,time_us\nh200,x,bf16,100,8192,6\n");
  REQUIRE(taps.op == KernelOp::kConvolution);
  CHECK(work_of(taps.rows[0].call, taps.rows[0].format).bytes == 2.0 * 100 * 8192 * 2);

  const auto scores = read(
      "gpu,source,dtype,phase,batch_size,seq_len,kv_prefix_len,num_index_heads,index_head_dim,"
      "time_us\nh200,x,fp8,prefill,1,3,10,64,128,5\nh200,x,fp8,decode,4,1,99,64,128,5\n");
  REQUIRE(scores.op == KernelOp::kIndexScores);
  CHECK(std::get<IndexScoresCall>(scores.rows[0].call).keys == 12);  // the mean of 11, 12 and 13
  CHECK(std::get<IndexScoresCall>(scores.rows[1].call).keys == 100);

  CHECK(read("gpu,source,num_rows,row_length,index_topk,time_us\nh200,x,4,9000,2048,11\n").op ==
        KernelOp::kIndexChoice);

  const auto attention = read(
      "gpu,source,dtype,kv_dtype,phase,batch_size,seq_len,kv_prefix_len,num_heads_per_gpu,"
      "index_topk,time_us\nh200,x,bf16,fp8,decode,4,1,999,8,2048,30\n"
      "h200,x,bf16,fp8,prefill,1,500,4000,8,2048,300\n"
      "h200,x,bf16,fp8,prefill,1,500,0,8,2048,100\n");
  REQUIRE(attention.op == KernelOp::kSparseAttention);
  REQUIRE(attention.rows.size() == 2);
  CHECK(std::get<SparseAttentionCall>(attention.rows[0].call).chosen == 1000);
  CHECK(std::get<SparseAttentionCall>(attention.rows[1].call).chosen == 2048);
  CHECK(attention.left_out.at("a prompt of which all is attended to") == 1);
}

TEST_CASE("measured rows: experts of a benchmark with work that engines avoid are excluded") {
  const auto file = [](std::string_view source, int ep) {
    return read(fmt::format(
        "gpu,source,model,dtype,num_tokens,hidden,inter,topk,num_experts,tp,ep,distribution,"
        "time_us\nH100-SXM-80G,{},M,bf16,8192,4096,1536,8,128,1,{},balanced,10330\n",
        source, ep));
  };
  const auto share = file("aic-sglang-0.5.14", 8);
  REQUIRE(share.rows.size() == 1);
  CHECK(std::get<MoeCall>(share.rows[0].call).ep == 8);
  CHECK(file("aic-sglang-0.5.10", 1).rows.size() == 1);
  const auto remote = file("aic-sglang-0.5.10", 8);
  CHECK(remote.rows.empty());
  REQUIRE(remote.left_out.size() == 1);
  CHECK(remote.left_out.begin()->first.find("other GPUs' experts") != std::string::npos);
}

TEST_CASE("measured rows: inexpressible rows are counted with their reason and are not errors") {
  CHECK(read("a,b\n1,2\n").skipped == "no kernel's columns");
  const auto gemm = read(
      "gpu,source,dtype,m,n,k,time_us\n"
      "A100-SXM-80G,x,bf16,1,2,3,4\nTPUv5,x,bf16,1,2,3,4\nA100-SXM-80G,x,fp3,1,2,3,4\n");
  CHECK(gemm.rows.size() == 1);
  CHECK(gemm.left_out == std::map<std::string, std::int64_t>{{"GPU TPUv5", 1}, {"format fp3", 1}});
}

TEST_CASE("measured rows: malformed cells are errors with their line") {
  for (const char* cells :
       {"x,2,3,4", "1,-2,3,4", "1,2,3,0", "1,2,3,nan", "1,2,,4", "1.5,2,3,4", "1,2,3e-1,4"}) {
    try {
      (void)read(std::string{"gpu,source,dtype,m,n,k,time_us\nA40,x,bf16,"} + cells + "\n");
      FAIL("accepted: " << cells);
    } catch (const InputError& e) {
      CHECK(std::string{e.what()}.find("t.csv:2") != std::string::npos);
    }
  }
}

TEST_CASE("measured rows: a file without timings is refused and a folder of files is read") {
  const auto folder = test::fresh("no-timings");
  test::write(folder / "page.csv", "<!DOCTYPE html>\n<html><body>Not found</body></html>\n");
  for (const auto& path : {folder / "page.csv", folder}) {
    try {
      (void)read_all_measured(path);
      FAIL("accepted " << path);
    } catch (const InputError& e) {
      CHECK(std::string{e.what()}.starts_with(path.string() + ": expected kernel timings"));
    }
  }
  test::write(folder / "gemm.csv", "gpu,source,dtype,m,n,k,time_us\nA40,x,bf16,1,2,3,4\n");
  CHECK(read_all_measured(folder).size() == 2);
}

TEST_CASE("measured rows: a split keeps a shape whole and about a fifth of the shapes") {
  std::int64_t held = 0;
  for (int n = 1; n <= 2000; ++n) {
    MeasuredRow row;
    row.shape = fmt::format("{}x{}", 64 * n, 128);
    held += is_held_out(row);
    row.us = 7;  // only the shape counts
    row.stack = "other";
    CHECK(is_held_out(row) == is_held_out(row));
  }
  CHECK(held > 320);
  CHECK(held < 480);
}

TEST_CASE("measured rows: the available data is read completely") {
  const auto data = test::data_dir();
  if (!data) return;
  std::set<std::string> skipped;
  std::int64_t rows = 0;
  for (const MeasuredFile& file : read_all_measured(*data / "measured")) {
    if (!file.skipped.empty()) {
      skipped.insert(std::filesystem::path{file.path}.filename().string());
      continue;
    }
    rows += static_cast<std::int64_t>(file.rows.size());
    for (const auto& [reason, n] : file.left_out) {
      CAPTURE(file.path);
      CHECK(reason == "a benchmark that computes the rows of other GPUs' experts");
      rows += n;
    }
    for (const MeasuredRow& row : file.rows) {
      const double ideal = ideal_microseconds(row.call, row.format, kernel_gpu(*row.gpu));
      CHECK(ideal > 0);
    }
  }
  CHECK(rows > 100'000);
  CHECK(skipped == std::set<std::string>{"bandwidth_micro.csv", "e2e_points.csv",
                                         "e2e_splitwise.csv", "e2e_vllm_h100.csv",
                                         "gpu_specs.csv"});
}
