// Splits one operation over the CPU's threads.
#pragma once
#include <cstdint>
#include <type_traits>

namespace flow::cpu {

/// A reference to a callable.
class PartFunction {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_const_t<F>, PartFunction>) PartFunction(F& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, int64_t first, int64_t last) {
          (*static_cast<std::remove_reference_t<F>*>(object))(first, last);
        }) {}
  void operator()(int64_t first, int64_t last) const { call_(object_, first, last); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int64_t);
};

void run_parts(int threads, int64_t count, int64_t parts, PartFunction f);

/// Calls f(first, last) for parts that cover 0..count, in any order, on up to `threads` threads
/// including the caller's; returns when all are done. A part has at least `grain` items, so small
/// work stays on the caller's thread. The split depends only on the three numbers. f must not throw
/// or call parallel_for.
template <typename F>
void parallel_for(int threads, int64_t count, int64_t grain, F&& f) {
  if (count <= 0) return;
  int64_t parts = count / (grain < 1 ? 1 : grain);
  if (parts > threads) parts = threads;
  if (parts <= 1) return f(int64_t{0}, count);
  run_parts(threads, count, parts, PartFunction(f));
}

}  // namespace flow::cpu
