// The table of one level.
#include "kernels/cpu/loops/all.hpp"

#define FLOW_TEXT_OF(name) #name
#define FLOW_TEXT(name) FLOW_TEXT_OF(name)

namespace flow::cpu::FLOW_ISA {

Loops all_loops() {
  Loops loops{};
  loops.level = FLOW_TEXT(FLOW_ISA);
  fill_elements(loops);
  fill_reductions(loops);
  fill_rows(loops);
  fill_optimizers(loops);
  fill_random(loops);
  return loops;
}

}  // namespace flow::cpu::FLOW_ISA
