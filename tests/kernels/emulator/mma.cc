// Tensor cores and asynchronous copies by the rules of the PTX ISA: "Matrix Fragments for
// mma.m16n8k16 with floating point type", "ldmatrix" and "cp.async".
#include <utility>
#include <vector>

#include "tests/kernels/emulator/emulator.hpp"

namespace flow::emulator {

int64_t products = 0;

namespace {

constexpr int kPiece = 16;  // bytes per lane in an exchange

std::string at(const char* file, int line) {
  return std::string(file) + ":" + std::to_string(line);
}

// Row and column of element `i` of a lane's fragment.
struct Place2 {
  int row, column;
};
Place2 place_in_a(int lane, int i) {
  int group = lane >> 2, in_group = lane % 4;
  return {i < 2 || (i >= 4 && i < 6) ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
Place2 place_in_b(int lane, int i) {
  int group = lane >> 2, in_group = lane % 4;
  return {in_group * 2 + (i & 1) + (i < 2 ? 0 : 8), group};
}
Place2 place_in_d(int lane, int i) {
  int group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

uint16_t element(const char* piece, int i) {
  uint16_t bits;
  std::memcpy(&bits, piece + 2 * i, sizeof bits);
  return bits;
}

void check(bool holds, const char* what, const char* file, int line) {
  if (holds) return;
  fail(what + (" at " + at(file, line)));
  abort_emulation();
}
bool is_aligned(const void* pointer, int bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

// A copy that a thread has begun.
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool inside;
};
struct Copies {
  std::vector<Copy> open;  // not in a group yet
  std::vector<std::vector<Copy>> groups;
};
std::vector<Copies> copies;  // by thread of the block

Copies& my_copies() {
  size_t thread = place.thread.x;
  if (copies.size() <= thread) copies.resize(thread + 1);
  return copies[thread];
}

}  // namespace

void mma_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
               float (*value)(uint16_t), const char* file, int line) {
  int self = lane(), first_row = place_in_d(self, 0).row, first_column = place_in_d(self, 0).column;
  if (self == 0) products++;
  float rows[2][16], columns[2][16];
  // The exchange buffer is valid until the next exchange but one, so the needed values are copied
  // first.
  const char* pieces = exchange(a, sizeof a, file, line);
  for (int from = 0; from < 32; from++) {
    if (place_in_a(from, 0).row != first_row) continue;
    for (int i = 0; i < 8; i++) {
      Place2 in_a = place_in_a(from, i);
      rows[in_a.row == first_row ? 0 : 1][in_a.column] = value(element(pieces + from * kPiece, i));
    }
  }
  pieces = exchange(b, sizeof b, file, line);
  for (int from = 0; from < 32; from++) {
    int column = place_in_b(from, 0).column - first_column;
    if (column != 0 && column != 1) continue;
    for (int i = 0; i < 4; i++)
      columns[column][place_in_b(from, i).row] = value(element(pieces + from * kPiece, i));
  }
  for (int i = 0; i < 4; i++) {
    Place2 in_d = place_in_d(self, i);
    const float* row = rows[in_d.row == first_row ? 0 : 1];
    const float* column = columns[in_d.column - first_column];
    for (int k = 0; k < 16; k++) d[i] += row[k] * column[k];
  }
}

void ldmatrix_x4(uint32_t (&to)[4], const void* row, bool transposed, const char* file, int line) {
  check(is_aligned(row, 16), "a row of ldmatrix is not aligned", file, line);
  check(is_shared(row, 16), "ldmatrix of what is not shared memory", file, line);
  const char* rows = exchange(row, 16, file, line);  // lane 8 m + r provided row r of matrix m
  int group = lane() >> 2, in_group = lane() % 4;
  for (int matrix = 0; matrix < 4; matrix++) {
    uint32_t both = 0;
    for (int i = 0; i < 2; i++) {
      int at_row = transposed ? in_group * 2 + i : group;
      int at_column = transposed ? group : in_group * 2 + i;
      uint16_t bits = element(rows + (8 * matrix + at_row) * kPiece, at_column);
      both |= static_cast<uint32_t>(bits) << (16 * i);
    }
    to[matrix] = both;
  }
}

void copy_async(void* to, const void* from, int bytes, bool inside, const char* file, int line) {
  check(is_aligned(to, bytes), "the target of a copy is not aligned", file, line);
  check(is_aligned(from, bytes), "the source of a copy is not aligned", file, line);
  auto size = static_cast<size_t>(bytes);
  check(is_shared(to, size), "a copy to what is not shared memory", file, line);
  my_copies().open.push_back({to, from, size, inside});
}

void commit_copies() {
  Copies& mine = my_copies();
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}

void wait_for_copies(int pending) {
  auto& groups = my_copies().groups;
  while (groups.size() > static_cast<size_t>(pending)) {
    for (const Copy& each : groups.front()) {
      if (each.inside)
        std::memcpy(each.to, each.from, each.bytes);
      else
        std::memset(each.to, 0, each.bytes);
    }
    groups.erase(groups.begin());
  }
}

bool end_copies() {
  bool done = true;
  for (Copies& each : copies) {
    done = done && each.open.empty();
    for (const auto& group : each.groups) done = done && group.empty();
  }
  copies.clear();
  return done;
}

}  // namespace flow::emulator
