// Joins requests to one batch along the first dimension and splits its result again. The tensors
// have no digest.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/serve/inference.hpp"
#include "flow/result.hpp"

namespace flow {

/// The common first dimension of all inputs; 1 if they differ, there are none, or no row has an
/// element.
int64_t rows_of(const Tensors& inputs);
/// Of the elements. Those of BYTES count with the memory that strings of a script take.
uint64_t bytes_of(const Tensors& tensors);
/// Of the inputs and the parameters: what the request takes in a queue.
uint64_t bytes_of(const InferRequest& request);
/// Equal texts mean that the requests can be joined: names, datatypes and shapes are equal except
/// for the first dimension. Empty if this one cannot be joined with any.
std::string batch_signature(const Tensors& inputs);
/// Zeros, or elements of BYTES without any byte, of so many rows, to be joined with these inputs.
Tensors zero_rows(const Tensors& like, int64_t rows);
/// Copies all parts; shares those of a single one.
Tensors join_rows(const std::vector<const Tensors*>& parts);
/// The parts share the memory of `outputs`, for which has_its_size() holds. Error if an output's
/// first dimension is not that of the batch.
Result<std::vector<Tensors>> split_rows(const Tensors& outputs, const std::vector<int64_t>& rows);

}  // namespace flow
