#include "transports/collective/message_algorithms.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace flow::collective {
namespace {

constexpr size_t kDoublingBytes = size_t{64} << 10;  // a longer all_reduce uses the ring
constexpr size_t kTreeBytes = size_t{256} << 10;     // a longer broadcast uses the chain
constexpr size_t kDirectBytes = size_t{8} << 10;     // a longer all_gather uses the ring
constexpr size_t kChainChunkBytes = size_t{256} << 10;

}  // namespace

MessageCollectives::MessageCollectives(CommunicatorState& state, Messages& messages,
                                       std::vector<int> ranks)
    : state_(state),
      messages_(messages),
      ranks_(std::move(ranks)),
      count_(static_cast<int>(ranks_.size())) {
  auto own = std::find(ranks_.begin(), ranks_.end(), state.rank());
  FLOW_CHECK(own != ranks_.end());
  me_ = static_cast<int>(own - ranks_.begin());
}

void MessageCollectives::send(int index, const void* data, size_t bytes, Transfer& transfer) {
  transfer.signature = call_;
  transfer.data = const_cast<char*>(static_cast<const char*>(data));
  transfer.bytes = bytes;
  messages_.send(at(index), ChannelKind::collective, transfer);
}

void MessageCollectives::receive(int index, void* data, size_t bytes, Transfer& transfer) {
  transfer.signature = call_;
  transfer.data = static_cast<char*>(data);
  transfer.bytes = bytes;
  messages_.receive(at(index), ChannelKind::collective, transfer);
}

bool MessageCollectives::wait(const Transfer& transfer, int index) {
  bool is_there = state_.wait_moving([&, rank = at(index)] {
    return transfer.is_done.load(std::memory_order_acquire) ? -1 : rank;
  });
  // The memory of the transfers belongs to the caller.
  if (!is_there) messages_.end();
  return is_there;
}

bool MessageCollectives::swap(int index, const void* out, void* in, size_t bytes) {
  Transfer sent, received;
  receive(index, in, bytes, received);
  send(index, out, bytes, sent);
  return wait(received, index) && wait(sent, index);
}

bool MessageCollectives::all_reduce(const Reducer& how, void* data, size_t count) {
  size_t size = dtype_size(how.dtype);
  if (count * size <= kDoublingBytes) return doubling(how, static_cast<char*>(data), count);
  return run_ring({static_cast<char*>(data), count, size, 0, 2 * count_ - 2, count_ - 1, how});
}

bool MessageCollectives::reduce_scatter(const Reducer& how, void* data, size_t count) {
  return run_ring({static_cast<char*>(data), count * static_cast<size_t>(count_),
                   dtype_size(how.dtype), 1, count_ - 1, count_ - 1, how});
}

bool MessageCollectives::all_gather(void* data, size_t bytes) {
  if (bytes <= kDirectBytes) return exchange_all(static_cast<char*>(data), bytes);
  return run_ring(
      {static_cast<char*>(data), bytes * static_cast<size_t>(count_), 1, 0, count_ - 1, 0, {}});
}

/// Ranks beyond a power of two send their data to a neighbor and get the result back. Operands are
/// combined in the order of ranks, so both sides compute the same bits.
bool MessageCollectives::doubling(const Reducer& how, char* data, size_t count) {
  size_t bytes = count * dtype_size(how.dtype);
  std::vector<char> other(bytes);
  Reducer step = how;
  step.divisor = 1;
  auto reduce_with = [&](bool other_is_before) {
    const void* in[] = {other_is_before ? other.data() : data,
                        other_is_before ? data : other.data()};
    if (count > 0) reduce(step, in, 2, count, data);
  };
  int most = static_cast<int>(std::bit_floor(static_cast<unsigned>(count_)));
  int folded = 2 * (count_ - most);
  bool is_folded = me_ < folded && me_ % 2 == 0;
  Transfer moved, back;
  if (is_folded) {
    send(me_ + 1, data, bytes, moved);
    if (!wait(moved, me_ + 1)) return false;
  } else {
    if (me_ < folded) {
      receive(me_ - 1, other.data(), bytes, moved);
      if (!wait(moved, me_ - 1)) return false;
      reduce_with(true);
    }
    int place = me_ < folded ? me_ / 2 : me_ - folded / 2;
    for (int mask = 1; mask < most; mask *= 2) {
      int partner = place ^ mask;
      int index = partner < folded / 2 ? 2 * partner + 1 : partner + folded / 2;
      if (!swap(index, data, other.data(), bytes)) return false;
      reduce_with(partner < place);
    }
    if (how.divisor > 1 && count > 0) {
      const void* in[] = {data};
      reduce(how, in, 1, count, data);
    }
  }
  if (is_folded) {
    receive(me_ + 1, data, bytes, back);
    return wait(back, me_ + 1);
  }
  if (me_ >= folded) return true;
  send(me_ - 1, data, bytes, back);
  return wait(back, me_ - 1);
}

bool MessageCollectives::exchange_all(char* data, size_t bytes) {
  auto all = static_cast<size_t>(count_);
  std::vector<Transfer> received(all), sent(all);
  auto place = [&](int i) { return data + static_cast<size_t>(i) * bytes; };
  for (int i = 0; i < count_; i++) {
    if (i == me_) continue;
    receive(i, place(i), bytes, received[static_cast<size_t>(i)]);
    send(i, place(me_), bytes, sent[static_cast<size_t>(i)]);
  }
  for (int i = 0; i < count_; i++)
    if (i != me_ &&
        !(wait(received[static_cast<size_t>(i)], i) && wait(sent[static_cast<size_t>(i)], i)))
      return false;
  return true;
}

bool MessageCollectives::broadcast(void* data, size_t bytes, int root) {
  if (count_ == 1) return true;
  if (bytes <= kTreeBytes) return tree(static_cast<char*>(data), bytes, root);
  return chain(static_cast<char*>(data), bytes, root);
}

/// Binomial tree: in each step every rank that has the data sends it half as far as before.
bool MessageCollectives::tree(char* data, size_t bytes, int root) {
  int place = (me_ - root + count_) % count_;
  int mask = 1;
  for (; mask < count_; mask *= 2) {
    if ((place & mask) == 0) continue;
    Transfer received;
    receive(root + place - mask, data, bytes, received);
    if (!wait(received, root + place - mask)) return false;
    break;
  }
  std::vector<Transfer> sent(32);
  std::vector<int> to;
  for (mask /= 2; mask > 0; mask /= 2) {
    if (place + mask >= count_) continue;
    to.push_back(root + place + mask);
    send(to.back(), data, bytes, sent[to.size() - 1]);
  }
  for (size_t i = 0; i < to.size(); i++)
    if (!wait(sent[i], to[i])) return false;
  return true;
}

bool MessageCollectives::chain(char* data, size_t bytes, int root) {
  int place = (me_ - root + count_) % count_;
  size_t chunks = (bytes + kChainChunkBytes - 1) / kChainChunkBytes;
  std::vector<Transfer> received(chunks), sent(chunks);
  auto chunk = [&](size_t i) { return data + i * kChainChunkBytes; };
  auto length = [&](size_t i) { return std::min(kChainChunkBytes, bytes - i * kChainChunkBytes); };
  bool is_first = place == 0, is_last = place == count_ - 1;
  for (size_t i = 0; i < chunks && !is_first; i++)
    receive(me_ - 1, chunk(i), length(i), received[i]);
  for (size_t i = 0; i < chunks; i++) {
    if (!is_first && !wait(received[i], me_ - 1)) return false;
    if (!is_last) send(me_ + 1, chunk(i), length(i), sent[i]);
  }
  for (size_t i = 0; i < chunks && !is_last; i++)
    if (!wait(sent[i], me_ + 1)) return false;
  return true;
}

bool MessageCollectives::all_to_all(const void* from, void* to, size_t bytes) {
  const auto* in = static_cast<const char*>(from);
  auto* out = static_cast<char*>(to);
  std::vector<char> copied;  // data that is sent after its location is overwritten
  if (from == to) {
    copied.assign(in, in + bytes * static_cast<size_t>(count_));
    in = copied.data();
  }
  auto place = [&](int index) { return static_cast<size_t>((index + count_) % count_) * bytes; };
  for (int distance = 1; distance < count_; distance++) {
    Transfer sent, received;
    receive(me_ - distance, out + place(me_ - distance), bytes, received);
    send(me_ + distance, in + place(me_ + distance), bytes, sent);
    if (!wait(received, me_ - distance) || !wait(sent, me_ + distance)) return false;
  }
  if (bytes > 0 && in + place(me_) != out + place(me_))
    std::memcpy(out + place(me_), in + place(me_), bytes);
  return true;
}

bool MessageCollectives::barrier() {
  for (int distance = 1; distance < count_; distance *= 2) {
    Transfer sent, received;
    receive(me_ - distance, nullptr, 0, received);
    send(me_ + distance, nullptr, 0, sent);
    if (!wait(received, me_ - distance) || !wait(sent, me_ + distance)) return false;
  }
  return true;
}

}  // namespace flow::collective
