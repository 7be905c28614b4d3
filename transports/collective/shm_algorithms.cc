#include "transports/collective/shm_algorithms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace flow::collective {
namespace {

constexpr size_t kSmallBytes = size_t{16}
                               << 10;  // of all ranks together: each rank reduces everything
constexpr size_t kSliceElements = 64;  // slices begin at full cache lines

}  // namespace

void ShmCollectives::begin(const CallSignature& call) {
  state_.control().signatures[++begun_ % 2] = call;
  is_compared_ = false;
}

void ShmCollectives::arrive() {
  state_.control().step.store(++step_, std::memory_order_seq_cst);
  for (int i = 0; i < count_; i++)
    if (i != state_.me())
      CommunicatorState::ring_doorbell(
          state_.local_ranks()[static_cast<size_t>(i)].segment.control());
}

bool ShmCollectives::wait_for(uint64_t step) {
  int next = 0;
  bool have_arrived = state_.wait([&] {
    for (; next < count_; next++) {
      const LocalRank& local_rank = state_.local_ranks()[static_cast<size_t>(next)];
      if (local_rank.segment.control().step.load(std::memory_order_seq_cst) < step)
        return local_rank.rank;
    }
    return -1;
  });
  return have_arrived && (is_compared_ || compare_calls());
}

/// Every rank compares with the first one, so all report the same mismatch.
bool ShmCollectives::compare_calls() {
  is_compared_ = true;
  const LocalRank& first = state_.local_ranks().front();
  const CallSignature& expected = first.segment.control().signatures[begun_ % 2];
  for (const LocalRank& local_rank : state_.local_ranks()) {
    const CallSignature& signature = local_rank.segment.control().signatures[begun_ % 2];
    if (signature == expected) continue;
    state_.fail(mismatch(first.rank, expected, local_rank.rank, signature));
    return false;
  }
  return true;
}

char* ShmCollectives::input_buffer(int local_rank, uint64_t round) const {
  return state_.local_ranks()[static_cast<size_t>(local_rank)].segment.input_buffer(round);
}

ShmCollectives::Slice ShmCollectives::slice_of(int local_rank, size_t count) const {
  auto begin_of = [&](int i) {
    size_t at = count * static_cast<size_t>(i) / static_cast<size_t>(count_);
    return i == count_ ? count : at / kSliceElements * kSliceElements;
  };
  return {begin_of(local_rank), begin_of(local_rank + 1)};
}

bool ShmCollectives::all_reduce_at_once(const Reducer& how, const void* from, void* to,
                                        size_t count) {
  uint64_t round = round_++;
  size_t bytes = count * dtype_size(how.dtype);
  if (bytes > 0) std::memcpy(input_buffer(state_.me(), round), from, bytes);
  if (!arrive_and_wait()) return false;
  std::array<const void*, kRanksMax> in;
  for (int i = 0; i < count_; i++) in[static_cast<size_t>(i)] = input_buffer(i, round);
  if (count > 0) reduce(how, in.data(), count_, count, to);
  return true;
}

void ShmCollectives::write_inputs(const char* from, size_t count, size_t size) {
  Slice own = slice_of(state_.me(), count);
  char* to = input_buffer(state_.me(), round_);
  std::memcpy(to, from, own.begin * size);
  std::memcpy(to + own.end * size, from + own.end * size, (count - own.end) * size);
}

void ShmCollectives::reduce_own_slice(const Reducer& how, const char* from, char* to, size_t count,
                                      size_t size, uint64_t round) {
  Slice own = slice_of(state_.me(), count);
  if (own.begin == own.end) return;
  std::array<const void*, kRanksMax> in;
  for (int i = 0; i < count_; i++) {
    const char* all = i == state_.me() ? from : input_buffer(i, round);
    in[static_cast<size_t>(i)] = all + own.begin * size;
  }
  char* output =
      state_.local_ranks()[static_cast<size_t>(state_.me())].segment.output_buffer(round);
  reduce(how, in.data(), count_, own.end - own.begin, to + own.begin * size,
         output + own.begin * size);
}

void ShmCollectives::read_outputs(char* to, size_t count, size_t size, uint64_t round) {
  for (int i = 0; i < count_; i++) {
    Slice slice = slice_of(i, count);
    if (i == state_.me() || slice.begin == slice.end) continue;
    const char* output = state_.local_ranks()[static_cast<size_t>(i)].segment.output_buffer(round);
    std::memcpy(to + slice.begin * size, output + slice.begin * size,
                (slice.end - slice.begin) * size);
  }
}

/// Each round has two barriers: after the copy in, and after the reduction. The next round is
/// copied in while other ranks still reduce this one.
bool ShmCollectives::all_reduce(const Reducer& how, const void* from, void* to, size_t count) {
  size_t size = dtype_size(how.dtype);
  if (count * size * static_cast<size_t>(count_) <= kSmallBytes)
    return all_reduce_at_once(how, from, to, count);
  const auto* in = static_cast<const char*>(from);
  auto* out = static_cast<char*>(to);
  size_t most = kRoundBytes / size;
  auto length = [&](size_t at) { return std::min(most, count - at); };
  write_inputs(in, length(0), size);
  arrive();
  for (size_t at = 0; at < count; at += most) {
    uint64_t round = round_++, inputs_step = step_;
    if (!wait_for(inputs_step)) return false;
    reduce_own_slice(how, in + at * size, out + at * size, length(at), size, round);
    arrive();
    uint64_t outputs_step = step_;
    if (at + most < count) {
      write_inputs(in + (at + most) * size, length(at + most), size);
      arrive();
    }
    if (!wait_for(outputs_step)) return false;
    read_outputs(out + at * size, length(at), size, round);
  }
  return true;
}

bool ShmCollectives::reduce_scatter(const Reducer& how, const void* from, void* to, size_t count) {
  size_t size = dtype_size(how.dtype), all = static_cast<size_t>(count_);
  size_t most = std::max<size_t>(1, kRoundBytes / size / all);
  const auto* in = static_cast<const char*>(from);
  size_t own = static_cast<size_t>(state_.me());
  size_t at = 0;
  do {
    uint64_t round = round_++;
    size_t length = std::min(most, count - at);
    for (size_t i = 0; i < all; i++)
      if (i != own && length > 0)
        std::memcpy(input_buffer(state_.me(), round) + i * most * size,
                    in + (i * count + at) * size, length * size);
    if (!arrive_and_wait()) return false;
    std::array<const void*, kRanksMax> inputs;
    for (size_t i = 0; i < all; i++)
      inputs[i] = i == own ? in + (own * count + at) * size
                           : input_buffer(static_cast<int>(i), round) + own * most * size;
    if (length > 0) reduce(how, inputs.data(), count_, length, static_cast<char*>(to) + at * size);
    at += length;
  } while (at < count);
  return true;
}

bool ShmCollectives::all_gather(const void* from, void* to, size_t bytes) {
  size_t at = 0;
  do {
    uint64_t round = round_++;
    size_t length = std::min(kRoundBytes, bytes - at);
    const char* in = static_cast<const char*>(from) + at;
    if (length > 0) std::memcpy(input_buffer(state_.me(), round), in, length);
    if (!arrive_and_wait()) return false;
    for (int i = 0; i < count_ && length > 0; i++)
      std::memcpy(static_cast<char*>(to) + static_cast<size_t>(i) * bytes + at,
                  i == state_.me() ? in : input_buffer(i, round), length);
    at += length;
  } while (at < bytes);
  return true;
}

bool ShmCollectives::broadcast(void* data, size_t bytes, int root) {
  size_t at = 0;
  do {
    uint64_t round = round_++;
    size_t length = std::min(kRoundBytes, bytes - at);
    char* here = static_cast<char*>(data) + at;
    if (state_.me() == root && length > 0) std::memcpy(input_buffer(root, round), here, length);
    if (!arrive_and_wait()) return false;
    if (state_.me() != root && length > 0) std::memcpy(here, input_buffer(root, round), length);
    at += length;
  } while (at < bytes);
  return true;
}

bool ShmCollectives::all_to_all(const void* from, void* to, size_t bytes) {
  size_t all = static_cast<size_t>(count_), own = static_cast<size_t>(state_.me());
  size_t most = kRoundBytes / all;
  const auto* in = static_cast<const char*>(from);
  auto* out = static_cast<char*>(to);
  size_t at = 0;
  do {
    uint64_t round = round_++;
    size_t length = std::min(most, bytes - at);
    for (size_t i = 0; i < all && length > 0; i++)
      std::memcpy(input_buffer(state_.me(), round) + i * most, in + i * bytes + at, length);
    if (!arrive_and_wait()) return false;
    for (size_t i = 0; i < all && length > 0; i++)
      std::memcpy(out + i * bytes + at, input_buffer(static_cast<int>(i), round) + own * most,
                  length);
    at += length;
  } while (at < bytes);
  return true;
}

bool ShmCollectives::barrier() { return arrive_and_wait(); }

}  // namespace flow::collective
