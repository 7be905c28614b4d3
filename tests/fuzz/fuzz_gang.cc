// Two ranks' ends of a link under and after their handshake, fed with whatever: frames come as they
// are, changed, twice, not at all, later, made up, or are one's own. Nothing is taken but what the
// other end sealed, in its order and from the first; data that was not sealed may differ, but none
// is put behind a head that announced none.
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

struct Said {
  std::string control, bulk;
};

struct End {
  explicit End(const Identity& identity, int peer) : seal(identity, peer) {}
  GangSeal seal;
  std::deque<std::string> to_hear;
  std::vector<std::string> past;  // all that came or could have
  std::vector<std::string> own;   // all that it sent
  std::vector<Said> said;         // sealed by it
  size_t taken = 0;               // of what the other one sealed
  bool has_refused = false;
};

class Story {
 public:
  explicit Story(uint8_t kind)
      : first_(identity_of(0, kind), 1), second_(identity_of(1, kind), -1) {
    is_like_ = (kind & 1) == 0;
    pass(first_, second_, first_.seal.hello());
    if ((kind & 8) != 0) return;
    hear_next(second_, first_);
    for (int i = 0; i < 2; i++) hear_next(first_, second_);
    hear_next(second_, first_);
  }

  void play(Input& in) {
    bool is_first = in.byte() % 2 == 0;
    End& end = is_first ? first_ : second_;
    End& other = is_first ? second_ : first_;
    switch (in.byte() % 10) {
      case 0:
      case 1:
        return hear_next(end, other);
      case 2:
        return say(end, other, in.bytes(in.byte()));
      case 3:
        return say(end, other, std::string(size_t{in.byte()} << 6, 'x'));
      case 4:
        return change_next(end, in);
      case 5:
        if (!end.to_hear.empty()) end.to_hear.pop_front();
        return;
      case 6:
        if (end.to_hear.size() > 1) std::swap(end.to_hear[0], end.to_hear[1]);
        return;
      case 7:
        if (!end.past.empty()) hear(end, other, end.past[in.byte() % end.past.size()]);
        return;
      case 8:
        if (!end.own.empty()) hear(end, other, end.own[in.byte() % end.own.size()]);
        return;
      case 9:
        return hear(end, other, in.bytes(in.byte()));
    }
  }

 private:
  static Identity identity_of(int rank, uint8_t kind) {
    bool is_other = rank == 1 && (kind & 1) != 0;
    return {flow::sha256("gang"), is_other ? "another key" : "key", rank, 2,
            (kind & (rank == 0 ? 2 : 4)) != 0};
  }
  void pass(End& from, End& to, std::string frame) {
    from.own.push_back(frame);
    to.past.push_back(frame);
    to.to_hear.push_back(std::move(frame));
  }
  void say(End& from, End& to, std::string bulk) {
    if (!from.seal.is_proven()) return;
    FrameHead head;
    head.sequence = from.said.size();
    head.count = bulk.size();
    pass(from, to, from.seal.seal(bytes_of(head), bulk));
    from.said.push_back({std::string(bytes_of(head)), std::move(bulk)});
  }
  void change_next(End& end, Input& in) {
    if (end.to_hear.empty()) return;
    std::string& frame = end.to_hear.front();
    size_t at = in.byte() | in.byte() << 8;
    uint8_t how = in.byte();
    if (frame.empty() || how == 0) return frame.resize(at % 2048);
    at %= frame.size();
    frame[at] = static_cast<char>(frame[at] ^ how);
  }
  void hear_next(End& end, End& other) {
    if (end.to_hear.empty()) return;
    std::string frame = std::move(end.to_hear.front());
    end.to_hear.pop_front();
    hear(end, other, frame);
  }

  // As a link hears.
  void hear(End& end, End& other, const std::string& frame) {
    if (end.has_refused) return;
    flow::Status taken;
    UnsealedFrame opened;
    bool was_proven = end.seal.is_proven();
    if (!end.seal.has_hello()) {
      taken = end.seal.receive_hello(frame);
      if (taken.ok() && &end == &second_) pass(end, other, end.seal.hello());
      if (taken.ok()) pass(end, other, end.seal.proof());
    } else if (!was_proven) {
      taken = end.seal.receive_proof(frame);
      FLOW_CHECK(!taken.ok() || is_like_);
    } else {
      taken = end.seal.open(frame, opened);
    }
    end.has_refused = !taken.ok();
    if (was_proven && taken.ok()) check(end, other, opened);
  }
  void check(End& end, const End& other, const UnsealedFrame& opened) {
    FLOW_CHECK(end.taken < other.said.size());
    const Said& said = other.said[end.taken++];
    bool may_differ = said.bulk.size() > kSealedBytes && !end.seal.bulk();
    if (may_differ)
      FLOW_CHECK(opened.control == said.control);
    else
      FLOW_CHECK(opened.control == said.control + said.bulk && opened.bulk.empty());
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
