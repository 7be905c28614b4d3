#include <algorithm>

#include "transports/collective/message_algorithms.hpp"

namespace flow::collective {
namespace {

// Chunks sent as frames must not wait for a receive; puts are copied less often.
constexpr size_t kFrameChunkBytes = kWholeBytes, kPutChunkBytes = kLinkChunkBytes;
constexpr size_t kPutSliceBytes = size_t{2} << 20;  // slices of at least this size are sent as puts
constexpr size_t kRingAhead = 8;                    // chunks whose receives are posted ahead

}  // namespace

/// One pass around the ring. Every slice is sent in chunks, and each chunk is forwarded as soon as
/// it is reduced: a step does not wait for the previous one.
class MessageCollectives::RingRun {
 public:
  RingRun(MessageCollectives& collectives, const Ring& ring)
      : collectives_(collectives),
        ring_(ring),
        chunk_elements_(
            (longest() * ring.element < kPutSliceBytes ? kFrameChunkBytes : kPutChunkBytes) /
            ring.element),
        chunks_((longest() + chunk_elements_ - 1) / chunk_elements_),
        received_(chunks_ * static_cast<size_t>(ring.steps)),
        sent_(received_.size()),
        received_data_(kRingAhead * chunk_elements_ * ring.element) {}

  bool run() {
    for (size_t i = 0; i < chunks_; i++) send(i);
    for (size_t i = 0; i < received_.size(); i++) {
      while (posted_ < received_.size() && posted_ < i + kRingAhead) receive(posted_++);
      if (!collectives_.wait(received_[i], collectives_.me_ - 1)) return false;
      reduce_with(i);
      if (i + chunks_ < received_.size()) send(i + chunks_);
    }
    for (Transfer& sent : sent_)
      if (!collectives_.wait(sent, collectives_.me_ + 1)) return false;
    return true;
  }

 private:
  size_t begin_of(int slice) const {
    return ring_.count * static_cast<size_t>(slice) / static_cast<size_t>(collectives_.count_);
  }
  size_t longest() const {
    auto all = static_cast<size_t>(collectives_.count_);
    return (ring_.count + all - 1) / all;
  }
  /// The `i`th chunk that is sent; the chunk that is received is `before` slices earlier in the
  /// ring.
  Chunk chunk(size_t i, int before) const {
    int step = static_cast<int>(i / chunks_), all = collectives_.count_;
    int slice = (collectives_.me_ - ring_.shift - step - before) % all;
    slice = (slice + all) % all;
    size_t begin = begin_of(slice) + i % chunks_ * chunk_elements_, end = begin_of(slice + 1);
    size_t count = begin < end ? std::min(chunk_elements_, end - begin) : 0;
    return {ring_.data + begin * ring_.element, count};
  }
  bool reduces(size_t i) const { return i / chunks_ < static_cast<size_t>(ring_.reducing_steps); }
  char* received_data(size_t i) {
    return received_data_.data() + i % kRingAhead * chunk_elements_ * ring_.element;
  }

  void send(size_t i) {
    Chunk out = chunk(i, 0);
    collectives_.send(collectives_.me_ + 1, out.data, out.count * ring_.element, sent_[i]);
  }
  void receive(size_t i) {
    Chunk in = chunk(i, 1);
    char* to = reduces(i) ? received_data(i) : in.data;
    collectives_.receive(collectives_.me_ - 1, to, in.count * ring_.element, received_[i]);
  }
  void reduce_with(size_t i) {
    Chunk own = chunk(i, 1);
    if (!reduces(i) || own.count == 0) return;
    Reducer how = ring_.how;
    bool is_last = i / chunks_ + 1 == static_cast<size_t>(ring_.reducing_steps);
    if (!is_last) how.divisor = 1;
    const void* in[] = {received_data(i), own.data};
    reduce(how, in, 2, own.count, own.data);
  }

  MessageCollectives& collectives_;
  const Ring& ring_;
  const size_t chunk_elements_, chunks_;
  std::vector<Transfer> received_, sent_;
  std::vector<char> received_data_;
  size_t posted_ = 0;
};

bool MessageCollectives::run_ring(const Ring& ring) {
  if (count_ == 1 || ring.count == 0) return true;
  return RingRun(*this, ring).run();
}

}  // namespace flow::collective
