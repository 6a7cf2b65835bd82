// ServeGen's clients. The part of the input before the first NUL is the client's `-trace.csv`, the
// rest is its `-dataset.json`. Requests are drawn only if few are expected.
#include <cstdlib>
#include <string>
#include <system_error>

#include "tests/fuzz/target.hpp"
#include "traces/requests/formats/record_reader.hpp"
#include "traces/requests/formats/servegen.hpp"

namespace {

namespace fs = std::filesystem;

/// A folder whose two client files link to the files of as_file.
class Client {
 public:
  Client() {
    std::string name = (fs::temp_directory_path() / "kvsim-fuzz-").string() + std::string(6, 'X');
    if (mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
    fs::create_symlink(kvsim::fuzz::as_file("", 0), folder_ / "client-trace.csv");
    fs::create_symlink(kvsim::fuzz::as_file("", 1), folder_ / "client-dataset.json");
  }
  ~Client() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  [[nodiscard]] const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  static const Client client;
  const std::string_view text = fuzz::text_of(data, size);
  const std::size_t cut = std::min(text.find('\0'), text.size());
  (void)fuzz::as_file(text.substr(0, cut), 0);
  (void)fuzz::as_file(text.substr(std::min(cut + 1, text.size())), 1);
  constexpr double kFew = 1e3;
  ReadOptions tolerant;
  tolerant.skip_bad = 1000;
  for (const ReadOptions& options : {ReadOptions{}, tolerant}) {
    fuzz::expect_answer([&] {
      RequestSink sink{"input", RequestFormat::kServeGen, options};
      const auto read = read_servegen_client(client.folder() / "client-trace.csv", sink);
      if (expected_requests(read) <= kFew) (void)read_servegen(client.folder(), options);
    });
  }
  return 0;
}
