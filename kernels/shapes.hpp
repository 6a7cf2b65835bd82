#pragma once

// Sizes of kernel launches, and the traffic of each kernel as an exact formula of them. Plain
// numbers, independent of the executor and CUDA. tests/kernels checks them against the simulator's
// counts.

#include "kernels/shapes/attention.hpp"
#include "kernels/shapes/bandwidth.hpp"
#include "kernels/shapes/copies.hpp"
#include "kernels/shapes/formats.hpp"
#include "kernels/shapes/merges.hpp"
#include "kernels/shapes/products.hpp"
#include "kernels/shapes/prompt.hpp"
#include "kernels/shapes/quantised.hpp"
#include "kernels/shapes/scores.hpp"
#include "kernels/shapes/steps.hpp"
#include "kernels/shapes/traffic.hpp"
