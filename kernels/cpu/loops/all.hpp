// Shared by the files of this folder: each fills its part of the table.
#pragma once
#include "kernels/cpu/loops.hpp"
#include "kernels/cpu/loops/isa.hpp"

namespace flow::cpu::FLOW_ISA {

void fill_elements(Loops& loops);
void fill_reductions(Loops& loops);
void fill_rows(Loops& loops);
void fill_optimizers(Loops& loops);
void fill_random(Loops& loops);
/// The whole table of this level.
Loops all_loops();

void units_float(uint64_t seed, uint64_t first, kernels::RandomUse use, float* out, int64_t count);
void units_double(uint64_t seed, uint64_t first, kernels::RandomUse use, double* out,
                  int64_t count);

}  // namespace flow::cpu::FLOW_ISA
