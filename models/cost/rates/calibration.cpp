#include "models/cost/rates/calibration.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/cost/rates/device_calibration.hpp"

namespace kvsim {
namespace {

Calibration fitted(std::string id, std::string provenance, const KernelLibrary& kernels) {
  Calibration out{.id = std::move(id),
                  .provenance = std::move(provenance),
                  .families = {},
                  .kernels = &kernels,
                  .host_residual = kProfileResidual};
  for (std::size_t i = 0; i < kOpFamilies; ++i) {
    out.families[i].relative_residual =
        is_unmeasured(static_cast<OpFamily>(i)) ? kUnmeasuredResidual : kProfileResidual;
  }
  return out;
}

}  // namespace

const Calibration& builtin_calibration() {
  static const Calibration calibration =
      fitted("builtin",
             "kernels fitted to published timings (kvsim list calibrations); other operators at "
             "the shares of the data sheet that the stack names",
             KernelLibrary::builtin());
  return calibration;
}

std::shared_ptr<const Calibration> own_calibration(const std::filesystem::path& path,
                                                   std::string id) {
  struct Own {
    explicit Own(std::vector<KernelCalibrationFile> files) : library{std::move(files)} {}
    KernelLibrary library;
    Calibration calibration;
  };
  if (std::error_code status; !std::filesystem::is_directory(path, status)) {
    const Field document = Field::read_file(path);
    if (is_device_calibration(document)) return read_device_calibration(document, std::move(id));
  }
  std::vector<KernelCalibrationFile> files = read_calibrations(path);
  std::vector<std::string> sources;
  for (const KernelCalibrationFile& file : files) {
    if (std::find(sources.begin(), sources.end(), file.provenance) == sources.end()) {
      sources.push_back(file.provenance);
    }
  }
  auto own = std::make_shared<Own>(std::move(files));
  own->calibration = fitted(
      std::move(id), fmt::format("kernels fitted to {}", fmt::join(sources, "; ")), own->library);
  return {own, &own->calibration};
}

}  // namespace kvsim
