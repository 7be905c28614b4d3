// Busy waiting for events that arrive sooner than a thread could be woken.
#pragma once
#include <sched.h>

#include <cstdint>

namespace flow {

// How long to spin for the event that follows a short attempt.
constexpr int64_t kSpinUs = 100;

/// Yields and then pauses for about a microsecond, so that the core's sibling thread gets its
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
