// How a GPU's threads are laid over work: arithmetic alone, so that it is tested without a GPU.
#pragma once
#include <cstdint>

#include "kernels/shared/hd.hpp"

namespace flow::kernels {

constexpr int kWarp = 32;
constexpr int kBlockThreads = 256;  // of a kernel that has no reason for another number
/// The most that rows_for gives a block. A kernel that is launched so is compiled for as many
/// (__launch_bounds__): with more registers than they leave each thread its launch would fail.
constexpr int kRowThreadsMax = 1024;
/// Blocks of a kernel whose threads each walk over several elements: enough to fill the largest
/// device several times over. Never asked of the device, so that results do not depend on it.
/// kTilesMax of one that has a block for each piece of its work while there are not too many.
#ifdef FLOW_EMULATE  // so few that the tests' small shapes make all of them go round
constexpr int64_t kBlocksMax = 3, kTilesMax = 3;
#else
constexpr int64_t kBlocksMax = 8192, kTilesMax = int64_t{1} << 20;
#endif

FLOW_HD int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
FLOW_HD int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
FLOW_HD int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/// Blocks whose threads take `count` items one by one, by turns where there are more. At least 1.
inline int64_t blocks_for(int64_t count, int threads = kBlockThreads, int64_t max = kBlocksMax) {
  return most(1, least(divide_up(count, threads), least(max, kBlocksMax)));
}

/// Rows of `columns` elements: short ones are given to a warp each, long ones to a block each.
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
  int threads = columns <= 8192 ? 256 : columns <= 32768 ? 512 : kRowThreadsMax;
  return {threads, threads, most(1, least(rows, kTilesMax))};
}

/// A reduction of `length` elements to each of `outputs` numbers. A block has `wide` threads side
/// by side over outputs and `deep` over the elements of each; `splits` blocks share an output.
struct ReduceLaunch {
  int wide, deep;
  int64_t blocks, splits;
};
/// `by_output`: neighbours in memory belong to neighbouring outputs, not to one of them.
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
  // Each thread has some elements of its own before an output is shared by more blocks.
  int64_t room = divide_up(1024, divide_up(outputs, launch.wide));
  launch.splits = most(1, least(least(room, divide_up(length, int64_t{launch.deep} * 16)), 1024));
  return launch;
}

/// How one row is walked in packs of `width` elements: `head` single ones up to an address that is
/// a multiple of the pack, `packs`, and the rest.
struct RowPacks {
  int64_t head, packs;
};
/// `addresses` of the row in each of the operands that are read or written in packs.
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
