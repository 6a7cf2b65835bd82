#pragma once

// Sizes that the launches of kernels take, and the traffic of each kernel as an exact formula of
// them. Plain numbers: no executor, no CUDA. tests/kernels holds the simulator's counts to them.

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
