#include "transports/collective/shm_algorithms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace flow::collective {
namespace {

constexpr size_t kSmallBytes = size_t{16} << 10;  // of all ranks together: each combines everything
constexpr size_t kSliceElements = 64;             // slices begin at whole lines

}  // namespace

void Local::begin(const Signature& call) {
  state_.control().signatures[++begun_ % 2] = call;
  is_compared_ = false;
}

void Local::reach() {
  state_.control().step.store(++step_, std::memory_order_seq_cst);
  for (int i = 0; i < count_; i++)
    if (i != state_.me())
      CommunicatorState::ring_doorbell(
          state_.local_ranks()[static_cast<size_t>(i)].segment.control());
}

bool Local::wait_for(uint64_t step) {
  int next = 0;
  bool came = state_.wait([&] {
    for (; next < count_; next++) {
      const LocalRank& local_rank = state_.local_ranks()[static_cast<size_t>(next)];
      if (local_rank.segment.control().step.load(std::memory_order_seq_cst) < step)
        return local_rank.rank;
    }
    return -1;
  });
  return came && (is_compared_ || compare_calls());
}

/// All compare with the first: each that finds a difference finds the same one.
bool Local::compare_calls() {
  is_compared_ = true;
  const LocalRank& first = state_.local_ranks().front();
  const Signature& expected = first.segment.control().signatures[begun_ % 2];
  for (const LocalRank& local_rank : state_.local_ranks()) {
    const Signature& said = local_rank.segment.control().signatures[begun_ % 2];
    if (said == expected) continue;
    state_.fail(mismatch(first.rank, expected, local_rank.rank, said));
    return false;
  }
  return true;
}

char* Local::brought(int local_rank, uint64_t turn) const {
  return state_.local_ranks()[static_cast<size_t>(local_rank)].segment.brought(turn);
}

Local::Slice Local::slice_of(int local_rank, size_t count) const {
  auto begin_of = [&](int i) {
    size_t at = count * static_cast<size_t>(i) / static_cast<size_t>(count_);
    return i == count_ ? count : at / kSliceElements * kSliceElements;
  };
  return {begin_of(local_rank), begin_of(local_rank + 1)};
}

bool Local::all_reduce_at_once(const Combining& how, const void* from, void* to, size_t count) {
  uint64_t turn = turn_++;
  size_t bytes = count * dtype_size(how.dtype);
  if (bytes > 0) std::memcpy(brought(state_.me(), turn), from, bytes);
  if (!meet()) return false;
  std::array<const void*, kRanksMax> in;
  for (int i = 0; i < count_; i++) in[static_cast<size_t>(i)] = brought(i, turn);
  if (count > 0) combine(how, in.data(), count_, count, to);
  return true;
}

void Local::bring_for_others(const char* from, size_t count, size_t size) {
  Slice own = slice_of(state_.me(), count);
  char* to = brought(state_.me(), turn_);
  std::memcpy(to, from, own.begin * size);
  std::memcpy(to + own.end * size, from + own.end * size, (count - own.end) * size);
}

void Local::combine_own(const Combining& how, const char* from, char* to, size_t count, size_t size,
                        uint64_t turn) {
  Slice own = slice_of(state_.me(), count);
  if (own.begin == own.end) return;
  std::array<const void*, kRanksMax> in;
  for (int i = 0; i < count_; i++) {
    const char* all = i == state_.me() ? from : brought(i, turn);
    in[static_cast<size_t>(i)] = all + own.begin * size;
  }
  char* given = state_.local_ranks()[static_cast<size_t>(state_.me())].segment.given(turn);
  combine(how, in.data(), count_, own.end - own.begin, to + own.begin * size,
          given + own.begin * size);
}

void Local::take_from_others(char* to, size_t count, size_t size, uint64_t turn) {
  for (int i = 0; i < count_; i++) {
    Slice slice = slice_of(i, count);
    if (i == state_.me() || slice.begin == slice.end) continue;
    const char* given = state_.local_ranks()[static_cast<size_t>(i)].segment.given(turn);
    std::memcpy(to + slice.begin * size, given + slice.begin * size,
                (slice.end - slice.begin) * size);
  }
}

/// Each turn has two places to meet, all have brought and all have given; what can be done before
/// the next wait is done: the turn after is brought while others still combine this one.
bool Local::all_reduce(const Combining& how, const void* from, void* to, size_t count) {
  size_t size = dtype_size(how.dtype);
  if (count * size * static_cast<size_t>(count_) <= kSmallBytes)
    return all_reduce_at_once(how, from, to, count);
  const auto* in = static_cast<const char*>(from);
  auto* out = static_cast<char*>(to);
  size_t most = kTurnBytes / size;
  auto length = [&](size_t at) { return std::min(most, count - at); };
  bring_for_others(in, length(0), size);
  reach();
  for (size_t at = 0; at < count; at += most) {
    uint64_t turn = turn_++, brought_at = step_;
    if (!wait_for(brought_at)) return false;
    combine_own(how, in + at * size, out + at * size, length(at), size, turn);
    reach();
    uint64_t given_at = step_;
    if (at + most < count) {
      bring_for_others(in + (at + most) * size, length(at + most), size);
      reach();
    }
    if (!wait_for(given_at)) return false;
    take_from_others(out + at * size, length(at), size, turn);
  }
  return true;
}

bool Local::reduce_scatter(const Combining& how, const void* from, void* to, size_t count) {
  size_t size = dtype_size(how.dtype), all = static_cast<size_t>(count_);
  size_t most = std::max<size_t>(1, kTurnBytes / size / all);
  const auto* in = static_cast<const char*>(from);
  size_t own = static_cast<size_t>(state_.me());
  size_t at = 0;
  do {
    uint64_t turn = turn_++;
    size_t length = std::min(most, count - at);
    for (size_t i = 0; i < all; i++)
      if (i != own && length > 0)
        std::memcpy(brought(state_.me(), turn) + i * most * size, in + (i * count + at) * size,
                    length * size);
    if (!meet()) return false;
    std::array<const void*, kRanksMax> pieces;
    for (size_t i = 0; i < all; i++)
      pieces[i] = i == own ? in + (own * count + at) * size
                           : brought(static_cast<int>(i), turn) + own * most * size;
    if (length > 0) combine(how, pieces.data(), count_, length, static_cast<char*>(to) + at * size);
    at += length;
  } while (at < count);
  return true;
}

bool Local::all_gather(const void* from, void* to, size_t bytes) {
  size_t at = 0;
  do {
    uint64_t turn = turn_++;
    size_t length = std::min(kTurnBytes, bytes - at);
    const char* in = static_cast<const char*>(from) + at;
    if (length > 0) std::memcpy(brought(state_.me(), turn), in, length);
    if (!meet()) return false;
    for (int i = 0; i < count_ && length > 0; i++)
      std::memcpy(static_cast<char*>(to) + static_cast<size_t>(i) * bytes + at,
                  i == state_.me() ? in : brought(i, turn), length);
    at += length;
  } while (at < bytes);
  return true;
}

bool Local::broadcast(void* data, size_t bytes, int root) {
  size_t at = 0;
  do {
    uint64_t turn = turn_++;
    size_t length = std::min(kTurnBytes, bytes - at);
    char* here = static_cast<char*>(data) + at;
    if (state_.me() == root && length > 0) std::memcpy(brought(root, turn), here, length);
    if (!meet()) return false;
    if (state_.me() != root && length > 0) std::memcpy(here, brought(root, turn), length);
    at += length;
  } while (at < bytes);
  return true;
}

bool Local::all_to_all(const void* from, void* to, size_t bytes) {
  size_t all = static_cast<size_t>(count_), own = static_cast<size_t>(state_.me());
  size_t most = kTurnBytes / all;
  const auto* in = static_cast<const char*>(from);
  auto* out = static_cast<char*>(to);
  size_t at = 0;
  do {
    uint64_t turn = turn_++;
    size_t length = std::min(most, bytes - at);
    for (size_t i = 0; i < all && length > 0; i++)
      std::memcpy(brought(state_.me(), turn) + i * most, in + i * bytes + at, length);
    if (!meet()) return false;
    for (size_t i = 0; i < all && length > 0; i++)
      std::memcpy(out + i * bytes + at, brought(static_cast<int>(i), turn) + own * most, length);
    at += length;
  } while (at < bytes);
  return true;
}

bool Local::barrier() { return meet(); }

}  // namespace flow::collective
