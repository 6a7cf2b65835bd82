#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>

#include "models/gpu/gpu_of_user.hpp"
#include "models/units/error.hpp"
#include "models/units/units.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using test::rel;

std::string complaint_of(std::string_view name) {
  try {
    (void)find_gpu(name);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}

double gib(Bytes bytes) { return static_cast<double>(bytes.count()) / (1024.0 * 1024.0 * 1024.0); }

TEST_CASE("every GPU is found by its name and each alias in any spelling") {
  for (const Gpu& gpu : builtin_gpus()) {
    INFO(gpu.name);
    CHECK(&find_gpu(gpu.name) == &gpu);
    for (std::string alias : gpu.aliases) {
      INFO(alias);
      CHECK(&find_gpu(alias) == &gpu);
      std::transform(alias.begin(), alias.end(), alias.begin(), [](unsigned char c) {
        return c == '-' ? '_' : static_cast<char>(std::tolower(c));
      });
      CHECK(&find_gpu(alias) == &gpu);
      CHECK(&find_gpu("NVIDIA " + alias) == &gpu);
    }
  }
}

TEST_CASE("every GPU's data are plausible and have a source") {
  CHECK(builtin_gpus().size() >= 20);
  std::set<std::string> names;
  for (const Gpu& gpu : builtin_gpus()) {
    INFO(gpu.name);
    CHECK(names.insert(gpu.name).second);
    CHECK_FALSE(gpu.generation.empty());
    CHECK_FALSE(gpu.silicon.empty());
    // The driver, ECC and page tables reserve some memory, but at most a tenth.
    CHECK(gpu.hbm_usable < gpu.hbm);
    CHECK(gib(gpu.hbm_usable) > 0.9 * gib(gpu.hbm));
    CHECK(gpu.l2 < gpu.hbm);
    CHECK(gpu.sms > 0);
    CHECK(gpu.pcie < gpu.hbm_bandwidth);
    if (gpu.nvlink) CHECK(*gpu.nvlink > gpu.pcie);
    if (gpu.c2c) CHECK(*gpu.c2c > gpu.pcie);
    for (const char* key :
         {"hbm", "hbm_usable", "hbm_bandwidth", "peak", "peak_fp32", "sms", "l2", "pcie"}) {
      INFO(key);
      REQUIRE(gpu.sources.contains(key));
      CHECK(gpu.sources.at(key).size() > 5);
    }
    CHECK(gpu.sources.contains("nvlink") == gpu.nvlink.has_value());
    CHECK(gpu.sources.contains("c2c") == gpu.c2c.has_value());
    if (!gpu.hbm_usable_measured) {
      const std::string& source = gpu.sources.at("hbm_usable");
      CHECK((source.starts_with("taken from ") || source.starts_with("scaled from ")));
    }
  }
}

TEST_CASE("narrower operands are never slower and dense peaks are not the sparse ones") {
  for (const Gpu& gpu : builtin_gpus()) {
    INFO(gpu.name);
    CHECK(peak_flops(gpu, Dtype::kFp32) <= peak_flops(gpu, Dtype::kBf16));
    CHECK(peak_flops(gpu, Dtype::kBf16) == peak_flops(gpu, Dtype::kFp16));
    CHECK(peak_flops(gpu, Dtype::kFp16) <= peak_flops(gpu, Dtype::kFp8E4m3));
    // Blackwell Ultra has no int8 units.
    if (gpu.silicon != "B300") {
      CHECK(peak_flops(gpu, Dtype::kFp16) <= peak_flops(gpu, Dtype::kInt8));
    }
    // Weights of 4 and 2 bits are widened to 16 before the product.
    CHECK(peak_flops(gpu, Dtype::kInt4) == peak_flops(gpu, Dtype::kFp16));
    CHECK(peak_flops(gpu, Dtype::kInt2) == peak_flops(gpu, Dtype::kFp16));
    for (const auto& entry : kDtypes) {
      // An SM's tensor cores perform at most 8192 fp16 operations per clock (Blackwell), and no GPU
      // in the catalogue runs above 3 GHz; fp4 has six times that rate (Blackwell Ultra).
      CHECK(peak_flops(gpu, entry.dtype).count() < gpu.sms * 8192.0 * 6.0 * 3e9);
      CHECK(peak_flops(gpu, entry.dtype).count() > 0);
    }
  }
  // An A100 SM performs 1024 fp16 multiply-adds per clock: 108 x 2048 x 1.41 GHz = 311.9 TFLOP/s;
  // the data sheet's 624 is with sparsity.
  CHECK(peak_flops(find_gpu("A100-80GB-SXM"), Dtype::kFp16).count() ==
        rel(108 * 2048 * 1.41e9, 1e-3));
  // An H100 SM performs 2048: 132 x 4096 x 1.83 GHz = 989.4 TFLOP/s.
  CHECK(peak_flops(find_gpu("H100-80GB-SXM"), Dtype::kBf16).count() ==
        rel(132 * 4096 * 1.83e9, 1e-3));
}

TEST_CASE("known data sheet values") {
  const Gpu& a100 = find_gpu("A100-80GB-SXM");
  CHECK(a100.hbm == 80_GiB);
  CHECK(gib(a100.hbm_usable) == rel(79.15, 1e-4));
  CHECK(a100.hbm_bandwidth.count() == rel(2.039e12));
  CHECK(a100.l2 == 40_MiB);
  CHECK(a100.nvlink->count() == rel(600e9));
  // PB-LLM issue 3: "GPU 0 has a total capacty of 79.33 GiB".
  const Gpu& a800 = find_gpu("A800-80GB-SXM");
  CHECK(gib(a800.hbm_usable) == rel(79.33, 1e-6));
  CHECK(a800.nvlink->count() == rel(400e9));
  CHECK(a800.silicon == "A100");
  CHECK(a800.peak == a100.peak);
  // 42298834944 bytes = 39.39 GiB, the capacity that torch prints for A100 40GB.
  CHECK(find_gpu("A100-40GB").hbm_usable == 42298834944_B);
  CHECK(gib(find_gpu("A100-40GB").hbm_usable) == rel(39.39, 2e-4));
  CHECK(find_gpu("H100-80GB-SXM").nvlink->count() == rel(900e9));
  CHECK(find_gpu("H800").nvlink->count() == rel(400e9));
  CHECK(gib(find_gpu("H200").hbm_usable) == rel(139.80, 1e-4));
  CHECK(find_gpu("H200").hbm_bandwidth.count() == rel(4.8e12));
  CHECK(find_gpu("GH200-96GB").c2c->count() == rel(450e9));
  CHECK_FALSE(find_gpu("L40S").nvlink.has_value());
  // One GPU of a system of eight and of 72: 62 and 576 TB/s in total.
  CHECK(find_gpu("B300").hbm_bandwidth.count() * 8 == rel(62e12));
  CHECK(find_gpu("GB300").hbm_bandwidth.count() * 72 == rel(576e12));
  CHECK(gib(find_gpu("GB200").hbm_usable) == rel(184.31, 1e-6));
  CHECK(gib(find_gpu("RTX-5090").hbm_usable) == rel(31.37, 1e-6));
  CHECK(find_gpu("L4").sms * 128 == 7424);
  CHECK(find_gpu("A10").sms * 128 == 9216);
  CHECK(find_gpu("L20").sms * 128 == 11776);
  CHECK(find_gpu("RTX-6000-Ada").sms * 128 == 18176);
  CHECK(find_gpu("A30").nvlink_gpus == 2);
  CHECK(&find_gpu("DGX-Spark") == &find_gpu("GB10"));
}

TEST_CASE("AMD's GPUs") {
  // A CDNA 3 compute unit performs 2,048 fp16 operations per clock, a CDNA 4 unit 4,096.
  CHECK(peak_flops(find_gpu("MI300X"), Dtype::kBf16).count() == rel(304 * 2048 * 2.1e9, 1e-3));
  CHECK(peak_flops(find_gpu("MI355X"), Dtype::kBf16).count() == rel(256 * 4096 * 2.4e9, 1e-3));
  CHECK(find_gpu("MI325X").peak == find_gpu("MI300X").peak);
  CHECK_FALSE(is_nvidia(find_gpu("MI300X")));
  CHECK(is_nvidia(find_gpu("H100-80GB-SXM")));
}

TEST_CASE("silicon names a GPU of the catalogue or is a separate name") {
  for (const Gpu& gpu : builtin_gpus()) {
    INFO(gpu.name);
    CHECK(std::any_of(builtin_gpus().begin(), builtin_gpus().end(), [&](const Gpu& other) {
      return other.name.starts_with(gpu.silicon) && other.silicon == gpu.silicon;
    }));
  }
}

TEST_CASE("the spellings of GPUs in published measurements resolve") {
  const std::map<std::string, std::string> spellings{
      {"A100-80GB", "A100-80GB-SXM"},
      {"A100-80G(vidur)", "A100-80GB-SXM"},
      {"A100-SXM-80G", "A100-80GB-SXM"},
      {"A100-SXM-80G(DGX)", "A100-80GB-SXM"},
      {"A100-SXM-80G(llmcompass)", "A100-80GB-SXM"},
      {"A100-80G?", "A100-80GB-SXM"},
      {"A100-PCIe-80G", "A100-80GB-PCIe"},
      {"A100-40GB", "A100-40GB-SXM"},
      {"A100-SXM-40G", "A100-40GB-SXM"},
      {"A800-80GB", "A800-80GB-SXM"},
      {"A800-SXM-80G", "A800-80GB-SXM"},
      {"A800-SXM4-80G", "A800-80GB-SXM"},
      {"H100-80GB", "H100-80GB-SXM"},
      {"H100-80GB-SXM", "H100-80GB-SXM"},
      {"H100-80G(vidur)", "H100-80GB-SXM"},
      {"H100-DGX(vidur)", "H100-80GB-SXM"},
      {"H100-PCIe-80G", "H100-80GB-PCIe"},
      {"H200", "H200-141GB-SXM"},
      {"H200-141GB", "H200-141GB-SXM"},
      {"H200-141GB-MaxQ", "H200-141GB-SXM"},
      {"H200-SXM-141G", "H200-141GB-SXM"},
      {"GH200-96GB", "GH200-96GB"},
      {"GH200-144GB", "GH200-144GB"},
      {"GH200-SXM-141G", "GH200-144GB"},
      {"H20-96G", "H20"},
      {"H20-96GB", "H20"},
      {"H800-SXM", "H800-80GB-SXM"},
      {"H800-SXM-80G", "H800-80GB-SXM"},
      {"L40S-48GB", "L40S"},
      {"L40", "L40"},
      {"A6000-48GB", "A6000"},
      {"A40-48GB", "A40"},
      {"T4-16GB", "T4"},
      {"RTX3090-24GB", "RTX-3090"},
      {"RTX4090-24GB", "RTX-4090"},
      {"B200-SXM", "B200"},
      {"NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"},
      {"NVIDIA H100 80GB HBM3", "H100-80GB-SXM"},
      {"NVIDIA GeForce RTX 4090", "RTX-4090"},
      {"NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"},
      {"NVIDIA A10", "A10"},
      {"NVIDIA A10G", "A10G"},
      {"NVIDIA L20", "L20"},
      {"NVIDIA H20-3e", "H20-141GB"},
      {"H20-SXM-141GB", "H20-141GB"},
  };
  for (const auto& [spelling, name] : spellings) {
    INFO(spelling);
    CHECK(find_gpu(spelling).name == name);
  }
}

TEST_CASE("an ambiguous name lists the candidates and an unknown one the nearest names") {
  CHECK(complaint_of("A100") ==
        "GPU \"A100\" is ambiguous; one of A100-40GB-PCIe, A100-40GB-SXM, A100-80GB-PCIe, "
        "A100-80GB-SXM");
  CHECK(complaint_of("A100 (size not stated)") ==
        "GPU \"A100 (size not stated)\" is ambiguous; one of A100-40GB-PCIe, A100-40GB-SXM, "
        "A100-80GB-PCIe, A100-80GB-SXM");
  CHECK(complaint_of("a100 pcie") ==
        "GPU \"a100 pcie\" is ambiguous; one of A100-40GB-PCIe, A100-80GB-PCIe");
  CHECK(complaint_of("GH200") == "GPU \"GH200\" is ambiguous; one of GH200-144GB, GH200-96GB");
  CHECK(complaint_of("A800").starts_with("GPU \"A800\" is ambiguous"));
  CHECK(complaint_of("H100-80GB-SXN") ==
        "unknown GPU \"H100-80GB-SXN\"; did you mean \"H100-80GB-SXM\"?");
  // A name that begins with the word is listed before a name that differs by a letter (H20).
  CHECK(complaint_of("h10").find("did you mean one of H100") != std::string::npos);
  // L4 is a different GPU from L40, not an abbreviation of it.
  CHECK(find_gpu("L4").name == "L4");
  for (const char* name : {"L2", "", "()", "any", "n/a", "MI250X", "80GB", "A100-20GB"}) {
    INFO(name);
    CHECK(complaint_of(name).starts_with("unknown GPU \""));
  }
}

TEST_CASE("a short name given by a user selects one card with a note about the others") {
  const std::map<std::string, std::string> cards{
      {"h100", "H100-80GB-SXM"},        {"H100", "H100-80GB-SXM"},
      {"a100", "A100-80GB-SXM"},        {"A100_SXM", "A100-80GB-SXM"},
      {"a100 pcie", "A100-80GB-PCIe"},  {"A800", "A800-80GB-SXM"},
      {"NVIDIA H100", "H100-80GB-SXM"}, {"gh200", "GH200-96GB"},
      {"a100-80gb", "A100-80GB-SXM"},   {"h200", "H200-141GB-SXM"}};
  for (const auto& [name, card] : cards) {
    INFO(name);
    const NamedGpu named = gpu_of_user(name);
    CHECK(named.gpu->name == card);
    CHECK(named.note.starts_with("\"" + name + "\" is taken as " + card +
                                 "; the catalogue also has "));
  }
  CHECK(gpu_of_user("h100").note ==
        "\"h100\" is taken as H100-80GB-SXM; the catalogue also has H100-80GB-PCIe, H100-NVL");
  // GPUs with a single card, or unambiguous names.
  for (const char* name : {"H200_SXM", "b200", "l40s", "rtx 4090", "H100-80GB-SXM", "h100_80gb_sxm",
                           "h100 pcie", "t4"}) {
    INFO(name);
    CHECK(gpu_of_user(name).note.empty());
  }
  CHECK_THROWS_AS((void)gpu_of_user("H1000000"), InputError);
}

}  // namespace
}  // namespace kvsim
