#include "tests/support/check.hpp"
