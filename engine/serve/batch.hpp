// Joins requests to one batch along the first dimension and splits its result again.
#pragma once
#include <vector>

#include "engine/serve/model_server.hpp"

namespace flow {

/// The common first dimension of all inputs; 1 if they differ or there are none.
int64_t rows_of(const Tensors& inputs);
/// Whether names, datatypes and shapes are equal except for the first dimension.
bool can_join(const Tensors& a, const Tensors& b);
Tensors join_rows(const std::vector<const Tensors*>& parts);
/// Error if an output's first dimension is not that of the batch.
Result<std::vector<Tensors>> split_rows(const Tensors& outputs, const std::vector<int64_t>& rows);

}  // namespace flow
