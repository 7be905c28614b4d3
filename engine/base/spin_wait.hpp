// Waiting for what comes sooner than a thread can be woken.
#pragma once
#include <sched.h>

#include <cstdint>

namespace flow {

constexpr int64_t kSpinUs = 100;  // so long what follows a short attempt is awaited without sleep

/// About a microsecond, after letting whoever has work go first. Leaves the core's other thread its
/// share.
inline void spin_pause() {
  constexpr int kPauses = 16;
  ::sched_yield();
  for (int i = 0; i < kPauses; i++) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
  }
}

}  // namespace flow
