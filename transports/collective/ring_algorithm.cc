#include <algorithm>

#include "transports/collective/message_algorithms.hpp"

namespace flow::collective {
namespace {

// Pieces that go as frames have to wait for nobody; puts are copied less often.
constexpr size_t kFramePieceBytes = kWholeBytes, kPutPieceBytes = kLinkChunkBytes;
constexpr size_t kPutSliceBytes = size_t{2} << 20;  // slices of so much go as puts
constexpr size_t kRingAhead = 8;                    // pieces that are received ahead

}  // namespace

/// One way round the ring. Every slice goes in pieces, each of which goes on as soon as it is
/// combined: a step does not wait for the one before it.
class Spread::RingRun {
 public:
  RingRun(Spread& spread, const Ring& ring)
      : spread_(spread),
        ring_(ring),
        most_((longest() * ring.element < kPutSliceBytes ? kFramePieceBytes : kPutPieceBytes) /
              ring.element),
        pieces_((longest() + most_ - 1) / most_),
        came_(pieces_ * static_cast<size_t>(ring.steps)),
        sent_(came_.size()),
        waiting_(kRingAhead * most_ * ring.element) {}

  bool run() {
    for (size_t i = 0; i < pieces_; i++) send(i);
    for (size_t i = 0; i < came_.size(); i++) {
      while (posted_ < came_.size() && posted_ < i + kRingAhead) receive(posted_++);
      if (!spread_.wait(came_[i], spread_.me_ - 1)) return false;
      combine_with(i);
      if (i + pieces_ < came_.size()) send(i + pieces_);
    }
    for (Transfer& sent : sent_)
      if (!spread_.wait(sent, spread_.me_ + 1)) return false;
    return true;
  }

 private:
  size_t begin_of(int slice) const {
    return ring_.count * static_cast<size_t>(slice) / static_cast<size_t>(spread_.count_);
  }
  size_t longest() const {
    auto all = static_cast<size_t>(spread_.count_);
    return (ring_.count + all - 1) / all;
  }
  /// The `i`th piece that is sent; what is received comes `before` it in the ring.
  Piece piece(size_t i, int before) const {
    int step = static_cast<int>(i / pieces_), all = spread_.count_;
    int slice = (spread_.me_ - ring_.shift - step - before) % all;
    slice = (slice + all) % all;
    size_t begin = begin_of(slice) + i % pieces_ * most_, end = begin_of(slice + 1);
    size_t count = begin < end ? std::min(most_, end - begin) : 0;
    return {ring_.data + begin * ring_.element, count};
  }
  bool combines(size_t i) const { return i / pieces_ < static_cast<size_t>(ring_.combining); }
  char* waiting(size_t i) { return waiting_.data() + i % kRingAhead * most_ * ring_.element; }

  void send(size_t i) {
    Piece out = piece(i, 0);
    spread_.send(spread_.me_ + 1, out.data, out.count * ring_.element, sent_[i]);
  }
  void receive(size_t i) {
    Piece in = piece(i, 1);
    char* to = combines(i) ? waiting(i) : in.data;
    spread_.receive(spread_.me_ - 1, to, in.count * ring_.element, came_[i]);
  }
  void combine_with(size_t i) {
    Piece own = piece(i, 1);
    if (!combines(i) || own.count == 0) return;
    Combining how = ring_.how;
    bool is_last = i / pieces_ + 1 == static_cast<size_t>(ring_.combining);
    if (!is_last) how.divisor = 1;
    const void* in[] = {waiting(i), own.data};
    combine(how, in, 2, own.count, own.data);
  }

  Spread& spread_;
  const Ring& ring_;
  const size_t most_, pieces_;
  std::vector<Transfer> came_, sent_;
  std::vector<char> waiting_;
  size_t posted_ = 0;
};

bool Spread::go_round(const Ring& ring) {
  if (count_ == 1 || ring.count == 0) return true;
  return RingRun(*this, ring).run();
}

}  // namespace flow::collective
