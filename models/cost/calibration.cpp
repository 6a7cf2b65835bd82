#include "models/cost/calibration.hpp"

namespace kvsim {

const Calibration& builtin_calibration() {
  static const Calibration calibration = [] {
    Calibration out{.id = "builtin",
                    .provenance = "kernels fitted to published timings (kvsim list calibrations); "
                                  "other operators at the shares of the data sheet that the stack names",
                    .kernels = &KernelLibrary::builtin()};
    // How far an operator that no kernel's form times may lie from the rates of the stack's profile
    // is a judgement: 30 %.
    for (Efficiency& family : out.families) family.relative_residual = 0.3;
    return out;
  }();
  return calibration;
}

}  // namespace kvsim
