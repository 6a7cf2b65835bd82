# Homebrew formula: brew install --build-from-source cmake/packaging/kvsim.rb, next to kvsim-VERSION.tar.gz of ./kv release
# (HOMEBREW_KVSIM_ARCHIVE names it elsewhere). On Linux, as kvsim itself.
class Kvsim < Formula
  desc "Simulates KV-cache memory systems of LLM serving: memory, time, error"
  url "file://#{ENV.fetch("HOMEBREW_KVSIM_ARCHIVE", File.expand_path("kvsim-0.2.0.tar.gz", __dir__))}"
  version "0.2.0"
  license "Apache-2.0"

  depends_on "cmake" => :build
  depends_on "eigen" => :build
  depends_on "ninja" => :build
  depends_on "nlohmann-json" => :build
  depends_on "boost"
  depends_on "fmt"
  depends_on "gnuplot"
  depends_on :linux

  def install
    system "cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_TESTING=OFF",
                    "-DKVSIM_CUDA=OFF", "-DKVSIM_MPI=OFF", "-DKVSIM_PYTHON=OFF", *std_cmake_args
    system "cmake", "--build", "build", "--target", "kvsim", "kvsim-validate"
    system "cmake", "--install", "build", "--component", "program"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/kvsim --version")
    assert_match "ok", shell_output("#{bin}/kvsim validate kernels --only argmin_rows")
  end
end
