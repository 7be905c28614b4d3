// Requests become one batch along the first dimension, and its answer becomes theirs again.
#pragma once
#include <vector>

#include "engine/serve/model_server.hpp"

namespace flow {

/// The first dimension of every input; 1 where they differ or there is none.
int64_t rows_of(const Tensors& inputs);
/// The same names, datatypes and shapes but for the first dimension.
bool can_join(const Tensors& a, const Tensors& b);
Tensors join_rows(const std::vector<const Tensors*>& parts);
/// Error where an output's first dimension is not the batch's.
Result<std::vector<Tensors>> split_rows(const Tensors& outputs, const std::vector<int64_t>& rows);

}  // namespace flow
