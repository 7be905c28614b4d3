// Two ranks' ends of a link during and after their handshake. Frames are delivered, changed,
// repeated, lost, delayed, invented or reflected. Only sealed frames of the other end are accepted,
// in order and from the first. Unsealed data may differ, but no data is accepted for a head that
// announced none.
#include <deque>
#include <string>
#include <vector>

#include "tests/fuzz/input.hpp"
#include "tests/fuzz/randomness.hpp"
#include "transports/collective/gang_seal.hpp"

namespace {

using namespace flow::collective;
using flow::fuzz::Input;
using flow::fuzz::random_state;
using flow::fuzz::use_fixed_randomness;

const bool kReady = use_fixed_randomness();

struct SentFrame {
  std::string control, bulk;
};

struct End {
  explicit End(const RankIdentity& identity, int peer) : seal(identity, peer) {}
  GangSeal seal;
  std::deque<std::string> in_flight;
  std::vector<std::string> past;  // all that arrived or could have arrived
  std::vector<std::string> own;   // all that it sent
  std::vector<SentFrame> sent;    // sealed by it
  size_t received = 0;            // accepted from the other end
  bool has_rejected = false;
};

class Story {
 public:
  explicit Story(uint8_t kind)
      : first_(identity_of(0, kind), 1), second_(identity_of(1, kind), -1) {
    is_like_ = (kind & 1) == 0;
    pass(first_, second_, first_.seal.hello());
    if ((kind & 8) != 0) return;
    receive_next(second_, first_);
    for (int i = 0; i < 2; i++) receive_next(first_, second_);
    receive_next(second_, first_);
  }

  void play(Input& in) {
    bool is_first = in.byte() % 2 == 0;
    End& end = is_first ? first_ : second_;
    End& other = is_first ? second_ : first_;
    switch (in.byte() % 10) {
      case 0:
      case 1:
        return receive_next(end, other);
      case 2:
        return send_sealed(end, other, in.bytes(in.byte()));
      case 3:
        return send_sealed(end, other, std::string(size_t{in.byte()} << 6, 'x'));
      case 4:
        return change_next(end, in);
      case 5:
        if (!end.in_flight.empty()) end.in_flight.pop_front();
        return;
      case 6:
        if (end.in_flight.size() > 1) std::swap(end.in_flight[0], end.in_flight[1]);
        return;
      case 7:
        if (!end.past.empty()) receive(end, other, end.past[in.byte() % end.past.size()]);
        return;
      case 8:
        if (!end.own.empty()) receive(end, other, end.own[in.byte() % end.own.size()]);
        return;
      case 9:
        return receive(end, other, in.bytes(in.byte()));
    }
  }

 private:
  static RankIdentity identity_of(int rank, uint8_t kind) {
    bool is_other = rank == 1 && (kind & 1) != 0;
    return {flow::sha256("gang"), is_other ? "another key" : "key", rank, 2,
            (kind & (rank == 0 ? 2 : 4)) != 0};
  }
  void pass(End& from, End& to, std::string frame) {
    from.own.push_back(frame);
    to.past.push_back(frame);
    to.in_flight.push_back(std::move(frame));
  }
  void send_sealed(End& from, End& to, std::string bulk) {
    if (!from.seal.is_proven()) return;
    FrameHead head;
    head.sequence = from.sent.size();
    head.count = bulk.size();
    pass(from, to, from.seal.seal(bytes_of(head), bulk));
    from.sent.push_back({std::string(bytes_of(head)), std::move(bulk)});
  }
  void change_next(End& end, Input& in) {
    if (end.in_flight.empty()) return;
    std::string& frame = end.in_flight.front();
    size_t at = in.byte() | in.byte() << 8;
    uint8_t how = in.byte();
    if (frame.empty() || how == 0) return frame.resize(at % 2048);
    at %= frame.size();
    frame[at] = static_cast<char>(frame[at] ^ how);
  }
  void receive_next(End& end, End& other) {
    if (end.in_flight.empty()) return;
    std::string frame = std::move(end.in_flight.front());
    end.in_flight.pop_front();
    receive(end, other, frame);
  }

  // As a link reports it.
  void receive(End& end, End& other, const std::string& frame) {
    if (end.has_rejected) return;
    flow::Status received;
    UnsealedFrame unsealed;
    bool was_proven = end.seal.is_proven();
    if (!end.seal.has_hello()) {
      received = end.seal.receive_hello(frame);
      if (received.ok() && &end == &second_) pass(end, other, end.seal.hello());
      if (received.ok()) pass(end, other, end.seal.proof());
    } else if (!was_proven) {
      received = end.seal.receive_proof(frame);
      FLOW_CHECK(!received.ok() || is_like_);
    } else {
      received = end.seal.open(frame, unsealed);
    }
    end.has_rejected = !received.ok();
    if (was_proven && received.ok()) check(end, other, unsealed);
  }
  void check(End& end, const End& other, const UnsealedFrame& unsealed) {
    FLOW_CHECK(end.received < other.sent.size());
    const SentFrame& sent = other.sent[end.received++];
    bool may_differ = sent.bulk.size() > kSealedBytes && !end.seal.bulk();
    if (may_differ)
      FLOW_CHECK(unsealed.control == sent.control);
    else
      FLOW_CHECK(unsealed.control == sent.control + sent.bulk && unsealed.bulk.empty());
  }

  End first_, second_;
  bool is_like_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FLOW_CHECK(kReady);
  random_state = 1;
  Input in(data, size);
  Story story(in.byte());
  while (!in.is_empty()) story.play(in);
  return 0;
}
