#pragma once

/// All of nibble's API for the host, but for xtensor.hpp, which needs xtensor.

#include "nibble/bf16.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/codec.hpp"
#include "nibble/convert.hpp"
#include "nibble/error.hpp"
#include "nibble/fp16.hpp"
#include "nibble/fp4.hpp"
#include "nibble/int8.hpp"
#include "nibble/memory.hpp"
#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "nibble/recipe.hpp"
#include "nibble/scratch.hpp"
#include "nibble/target.hpp"
#include "nibble/tensor.hpp"
#include "nibble/tensor_list.hpp"
#include "nibble/version.hpp"
