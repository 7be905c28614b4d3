// Distribution of work over a GPU's threads: arithmetic only, tested without a GPU.
#pragma once
#include <cstdint>

#include "kernels/shared/hd.hpp"

namespace flow::kernels {

constexpr int kWarp = 32;
constexpr int kBlockThreads = 256;  // of a kernel without a reason for another number
/// Maximum number of threads per block from rows_for. Kernels launched with it are compiled for
/// this many (__launch_bounds__): with more registers per thread than that leaves, a launch would
/// fail.
constexpr int kRowThreadsMax = 512;
/// Blocks of a kernel whose threads each loop over several elements: enough to fill the largest
/// device several times. It does not depend on the device, so results do not either. kTilesMax is
/// for kernels with one block per chunk of work, up to a limit.
#ifdef FLOW_EMULATE  // so few that the tests' small shapes use all loops
constexpr int64_t kBlocksMax = 3, kTilesMax = 3;
#else
constexpr int64_t kBlocksMax = 8192, kTilesMax = int64_t{1} << 20;
#endif

FLOW_HD int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
FLOW_HD int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
FLOW_HD int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/// Blocks whose threads process `count` items in a grid-stride loop. At least 1.
inline int64_t blocks_for(int64_t count, int threads = kBlockThreads, int64_t max = kBlocksMax) {
  return most(1, least(divide_up(count, threads), least(max, kBlocksMax)));
}

/// Rows of `columns` elements: a short row is processed by a warp, a long one by a block.
struct RowLaunch {
  int threads;         // of a block
  int threads_of_row;  // kWarp or `threads`
  int64_t blocks;
};
inline RowLaunch rows_for(int64_t rows, int64_t columns) {
  if (columns <= 1024) {
    int threads = 4 * kWarp;
    return {threads, kWarp, most(1, least(divide_up(rows, 4), kTilesMax))};
  }
  int threads = columns <= 8192 ? 256 : kRowThreadsMax;
  return {threads, threads, most(1, least(rows, kTilesMax))};
}
/// Rows of `packs` packs of which a thread keeps up to `packs_of_thread`. No threads if that needs
/// more than `threads_max` for a row.
inline RowLaunch kept_rows_for(int64_t rows, int64_t packs, int packs_of_thread, int threads_max) {
  if (packs <= kWarp * packs_of_thread) return rows_for(rows, 1);
  int64_t threads = divide_up(divide_up(packs, packs_of_thread), kWarp) * kWarp;
  if (threads > threads_max) return {0, 0, 0};
  return {static_cast<int>(threads), static_cast<int>(threads), most(1, least(rows, kTilesMax))};
}

/// Several times what the largest device runs at once: the last blocks leave little of it idle.
constexpr int64_t kSplitsMax = 4096;
/// A reduction of `length` elements to each of `outputs` numbers. A block has `wide` threads over
/// outputs times `deep` over the elements of each; `splits` blocks share an output.
struct ReduceLaunch {
  int wide, deep;
  int64_t blocks, splits;
};
/// `by_output`: adjacent elements in memory belong to adjacent outputs, not to the same one.
inline ReduceLaunch reduce_for(int64_t outputs, int64_t length, bool by_output) {
  ReduceLaunch launch{1, kBlockThreads, 0, 1};
  if (by_output) {
    launch.wide = kWarp;
  } else {
    while (launch.wide < 32 && launch.deep / 2 >= kWarp && launch.deep > length / 4)
      launch.wide *= 2, launch.deep /= 2;
  }
  launch.deep = kBlockThreads / launch.wide;
  launch.blocks = most(1, least(divide_up(outputs, launch.wide), kBlocksMax));
  // Each thread gets some elements before an output is split over more blocks.
  int64_t room = divide_up(kSplitsMax, divide_up(outputs, launch.wide));
  launch.splits = most(1, least(room, divide_up(length, int64_t{launch.deep} * 16)));
  return launch;
}

/// Iteration over a row in packs of `width` elements: `head` single ones up to a multiple of the
/// pack's size, `packs`, and the rest.
struct RowPacks {
  int64_t head, packs;
};
/// `addresses` of the row in each operand that is accessed in packs.
template <int n>
FLOW_HD RowPacks row_packs(int64_t columns, int width, int size, const uintptr_t (&addresses)[n]) {
  auto bytes = static_cast<uintptr_t>(width) * static_cast<uintptr_t>(size);
  uintptr_t over = addresses[0] % bytes;
  for (int k = 1; k < n; k++)
    if (addresses[k] % bytes != over) return {0, 0};
  auto head = static_cast<int64_t>(over == 0 ? 0 : (bytes - over) / static_cast<uintptr_t>(size));
  if (head > columns) head = columns;
  return {head, (columns - head) / width};
}

}  // namespace flow::kernels
