// The instructions of tensor cores and of asynchronous copies, as in the PTX ISA (sm_80 and later).
// The emulator implements the same rules: tests/kernels/emulator/mma.cc.
//
// Layouts, for lane l with g = l / 4 and t = l % 4, two elements to a register, the first in its
// lower half:
//   a (16 x 16)  a[0]: row g, columns 2t, 2t+1   a[1]: row g+8   a[2], a[3]: the same, columns + 8
//   b (16 x 8)   b0: rows 2t, 2t+1 of column g   b1: rows + 8
//   d (16 x 8)   d[0], d[1]: row g, columns 2t, 2t+1   d[2], d[3]: row g+8
// So two adjacent blocks of d, rounded, form an a.
#pragma once
#include "kernels/cuda/launch.cuh"

namespace flow::cuda {

#ifdef FLOW_EMULATE

template <typename T>
void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::mma_16816(
      d, a, {b0, b1}, [](uint16_t bits) { return T{bits}.to_float(); }, __FILE__, __LINE__);
}
inline void ldmatrix_x4(uint32_t (&to)[4], const void* row) {
  emulator::ldmatrix_x4(to, row, false, __FILE__, __LINE__);
}
inline void ldmatrix_x4_trans(uint32_t (&to)[4], const void* row) {
  emulator::ldmatrix_x4(to, row, true, __FILE__, __LINE__);
}
template <int bytes>
void copy_async(void* to, const void* from, bool inside) {
  emulator::copy_async(to, from, bytes, inside, __FILE__, __LINE__);
}
inline void commit_copies() { emulator::commit_copies(); }
template <int pending>
void wait_for_copies() {
  emulator::wait_for_copies(pending);
}
template <typename T>
uint32_t pack_2(float low, float high) {
  return uint32_t{convert<T>(low).bits} | uint32_t{convert<T>(high).bits} << 16;
}
inline float exp2_of(float x) { return std::exp2(x); }

#else

FLOW_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// d += a b, of the whole warp.
template <typename T>
FLOW_DEVICE void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, Half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row
/// l % 8 of matrix l / 8, a multiple of 16 bytes, and gets elements 2t and 2t+1 of row g of each:
/// of column g if transposed.
FLOW_DEVICE void ldmatrix_x4(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
FLOW_DEVICE void ldmatrix_x4_trans(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/// Starts an asynchronous copy of 16 or 4 bytes to shared memory; zeros if not `inside`, and `from`
/// is not read.
template <int bytes>
FLOW_DEVICE void copy_async(void* to, const void* from, bool inside) {
  static_assert(bytes == 4 || bytes == 16);
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(inside ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(inside ? 4 : 0)
                 : "memory");
}
/// Groups the copies that this thread started since the last group.
FLOW_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all of this thread's groups except the last `pending` are done; other threads need a
/// barrier too.
template <int pending>
FLOW_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Two numbers rounded to nearest, in one register.
template <typename T>
FLOW_DEVICE uint32_t pack_2(float low, float high) {
  uint32_t both;
  if constexpr (std::is_same_v<T, Half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

/// 2^x to 2 units in the last place; 0 below the normal floats.
FLOW_DEVICE float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif

}  // namespace flow::cuda
