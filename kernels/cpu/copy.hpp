// Copying, casting and filling.
#pragma once
#include "kernels/shared/view.hpp"

namespace flow::cpu {

using namespace kernels;

/// to = from, element by element, cast where the types differ. One shape; the memory may not
/// overlap.
void copy(const View& from, const View& to);
void fill(const View& to, double value);
void fill(const View& to, int64_t value);
/// Row i of `to` is row rows[i] (0-based, in range) of `from`.
void gather_rows(const View& from, const int64_t* rows, const View& to);

/// One element (the first) as a number.
double first_as_double(const View& view);
int64_t first_as_integer(const View& view);

}  // namespace flow::cpu
