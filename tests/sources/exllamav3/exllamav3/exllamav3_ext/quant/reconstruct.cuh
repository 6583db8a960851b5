// Matrices decoded to 16 bits, as the binding names them.
#pragma once

#include <ATen/Tensor.h>

void reconstruct(at::Tensor decoded, at::Tensor trellis, int bits, bool mcg, bool mul1);
void reconstruct_had_slice(at::Tensor decoded, at::Tensor trellis, at::Tensor suh, at::Tensor svh, int bits, bool mcg,
                           bool mul1, int64_t first_column);
