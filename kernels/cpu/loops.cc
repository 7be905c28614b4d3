// Selects the instruction set level of the inner loops.
#include "kernels/cpu/loops.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace flow::cpu {

namespace base {
Loops all_loops();
}
#ifdef FLOW_LEVELS
namespace v3 {
Loops all_loops();
}
namespace v4 {
Loops all_loops();
}
#endif

namespace {

std::atomic<const Loops*> chosen{nullptr};

const Loops* best_loops() {
  const char* most = std::getenv("FLOW_CPU_LEVEL");
  bool is_open = most == nullptr || *most == '\0';
  for (const char* level : {"v4", "v3", "base"}) {
    is_open = is_open || std::strcmp(most, level) == 0;
    const Loops* found = is_open ? loops_of_level(level) : nullptr;
    if (found != nullptr) return found;
  }
  return loops_of_level("base");
}

#ifdef FLOW_LEVELS
// clang tests the levels by their features only; all CPUs with AVX2 have the other features of v3.
bool has_v3() {
#ifdef __clang__
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
#else
  return __builtin_cpu_supports("x86-64-v3");
#endif
}

bool has_v4() {
#ifdef __clang__
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return __builtin_cpu_supports("x86-64-v4");
#endif
}
#endif

}  // namespace

const Loops* loops_of_level(const char* level) {
#ifdef FLOW_LEVELS
  if (std::strcmp(level, "v4") == 0) {
    if (!has_v4()) return nullptr;
    static const Loops made = v4::all_loops();
    return &made;
  }
  if (std::strcmp(level, "v3") == 0) {
    if (!has_v3()) return nullptr;
    static const Loops made = v3::all_loops();
    return &made;
  }
#endif
  if (std::strcmp(level, "base") != 0) return nullptr;
  static const Loops made = base::all_loops();
  return &made;
}

const Loops& loops() {
  const Loops* now = chosen.load(std::memory_order_acquire);
  if (now != nullptr) return *now;
  static const Loops* best = best_loops();
  return *best;
}

void use_loops(const Loops* level) { chosen.store(level, std::memory_order_release); }

}  // namespace flow::cpu
