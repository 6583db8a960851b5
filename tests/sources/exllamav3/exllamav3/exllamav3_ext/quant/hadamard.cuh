// The Hadamard transform of 128 values, as the binding names it.
#pragma once

#include <ATen/Tensor.h>

void had_r_128(const at::Tensor& input, const at::Tensor& output, const c10::optional<at::Tensor>& before,
               const c10::optional<at::Tensor>& after, const float scale);
