// A rank whose peer on another worker holds the gang's key and sends arbitrary messages: unexpected
// ones, other sizes, repeated, reordered, and puts of any length. Only expected memory is written,
// and a completed message holds what the peer sent.
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "tests/fuzz/input.hpp"
#include "transports/collective/rank_links.hpp"

namespace {

using namespace flow;
using namespace flow::collective;
using flow::fuzz::Input;

/// The rank's end of the link: sent messages are kept, expected ones wait.
class FakeLink final : public Link {
 public:
  void send(std::string frame) override { sent.push_back(std::move(frame)); }
  size_t unsent_bytes() const override { return 0; }
  void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) override {
    expected[tag] = {to, std::move(done)};
  }
  void cancel_receive(uint64_t) override {}
  void put(uint64_t, Region, std::function<void(Status)> done) override {
    put_done.push_back(std::move(done));
  }
  void close(int64_t) override {}
  std::string description() const override { return "fuzz"; }

  struct Expected {
    Region to;
    std::function<void(Result<size_t>)> done;
  };
  std::deque<std::string> sent;
  std::map<uint64_t, Expected> expected;
  std::deque<std::function<void(Status)>> put_done;
};

class FakeTransport final : public Transport {
 public:
  std::string name() const override { return "fuzz"; }
  Result<std::unique_ptr<Listener>> listen(
      const std::string&,
      std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)>) override {
    return environment_error("nobody listens");
  }
  Result<std::shared_ptr<Link>> connect(const std::string&,
                                        std::shared_ptr<LinkHandler> to) override {
    handler = std::move(to);
    return std::shared_ptr<Link>(link);
  }
  bool takes_device_memory() const override { return false; }

  std::shared_ptr<LinkHandler> handler;
  const std::shared_ptr<FakeLink> link = std::make_shared<FakeLink>();
};

struct Message {
  Transfer transfer;
  std::string memory;
  bool is_seen = false;  // since it is complete
};

class Story {
 public:
  explicit Story(bool encrypts) : encrypts_(encrypts), peer_(identity_of(1), -1) {
    auto segment = Segment::make(gang(), 0, 2);
    FLOW_CHECK(segment.ok());
    std::vector<LocalRank> local_ranks(1);
    local_ranks[0].segment = std::move(*segment);
    state_ =
        std::make_unique<CommunicatorState>(CommunicatorOptions{0, 2, 0}, std::move(local_ranks));
    listener_ = std::make_shared<RankListener>(identity_of(0), transport_);
    rank_links_ =
        std::make_unique<RankLinks>(*state_, listener_, std::vector<std::string>{"", "there"});
    (void)rank_links_->link_to(1);
    FLOW_CHECK(peer_.receive_hello(next_sent()).ok());
    transport_.handler->on_frame(peer_.hello());
    transport_.handler->on_frame(peer_.proof());
    FLOW_CHECK(peer_.receive_proof(next_sent()).ok());
  }
  // Breaks the link.
  ~Story() {
    while (!link().put_done.empty()) end_put(environment_error("it is down"));
    while (!link().expected.empty())
      end_expected(link().expected.begin(), environment_error("it is down"));
    transport_.handler->on_down(environment_error("it is down"));
    for (ChannelKind kind : {ChannelKind::user, ChannelKind::collective})
      rank_links_->channel(1, kind).drop();
    rank_links_.reset();
  }

  void play(Input& in) {
    ChannelKind kind = in.byte() % 2 == 0 ? ChannelKind::user : ChannelKind::collective;
    auto number = static_cast<size_t>(kind);
    switch (in.byte() % 9) {
      case 0:
        return start(kind, true, size_of(in));
      case 1:
        return start(kind, false, size_of(in));
      case 2:
        return rank_links_->channel(1, kind).step();
      case 3:
        return send_frame(FrameKind::data, kind, sent_count_[number]++, size_of(in), in);
      case 4:
        return send_frame(FrameKind::announce, kind, sent_count_[number]++, 0, in);
      case 5:
        return send_frame(FrameKind::ready, kind, in.byte() % 4, 0, in);
      case 6: {
        auto frame = static_cast<FrameKind>(in.byte());
        uint64_t sequence = in.number();
        return send_frame(frame, kind, sequence, in.byte(), in);
      }
      case 7:
        return put(in);
      case 8:
        return transport_.handler->on_frame(peer_.seal(in.bytes(in.byte())));
    }
  }

  void check() {
    for (Message& message : received_) {
      if (message.is_seen || !message.transfer.is_done) continue;
      message.is_seen = true;
      FLOW_CHECK(message.memory.find_first_not_of('x') == std::string::npos);
    }
  }

 private:
  static const Digest& gang() {
    static const Digest digest = sha256("gang");
    return digest;
  }
  RankIdentity identity_of(int rank) const { return {gang(), "key", rank, 2, encrypts_}; }
  FakeLink& link() { return *transport_.link; }
  std::string next_sent() {
    FLOW_CHECK(!link().sent.empty());
    std::string frame = std::move(link().sent.front());
    link().sent.pop_front();
    return frame;
  }
  static size_t size_of(Input& in) {
    constexpr size_t kSizes[] = {0,
                                 1,
                                 kSealedBytes,
                                 kSealedBytes + 1,
                                 kWholeBytes,
                                 kWholeBytes + 1,
                                 kLinkChunkBytes,
                                 kLinkChunkBytes + 1};
    return kSizes[in.byte() % std::size(kSizes)];
  }
  static CallSignature signature_of_size(size_t size) {
    return message_signature(flow::send("", static_cast<int64_t>(size), DType::u8, 1), 1);
  }
  void start(ChannelKind kind, bool is_send, size_t size) {
    constexpr size_t kMessagesMax = 6;
    constexpr int kLongMax = 2;
    auto& list = is_send ? sent_ : received_;
    if (list.size() == kMessagesMax) return;
    if (size > kSealedBytes + 1 && long_++ >= kLongMax) size = 1;
    Message& message = list.emplace_back();
    message.memory.assign(size, is_send ? 'y' : ' ');
    message.transfer.data = message.memory.data();
    message.transfer.bytes = size;
    message.transfer.signature = signature_of_size(size);
    RankChannel& channel = rank_links_->channel(1, kind);
    is_send ? channel.send(message.transfer) : channel.receive(message.transfer);
  }
  void send_frame(FrameKind kind, ChannelKind channel, uint64_t sequence, size_t size, Input& in) {
    FrameHead head;
    head.kind = kind;
    head.channel = static_cast<uint8_t>(channel);
    head.sequence = sequence;
    bool is_odd = in.byte() % 8 == 0;
    head.count = is_odd || kind != FrameKind::data ? in.number() : size;
    head.signature = signature_of_size(is_odd ? size + 1 : size);
    bool is_long = kind == FrameKind::announce || kind == FrameKind::ready;
    if (is_long) head.signature = signature_of_size(size_of(in));
    if (kind == FrameKind::announce) head.count = 0;
    transport_.handler->on_frame(peer_.seal(bytes_of(head), std::string(size, 'x')));
  }
  void end_expected(std::map<uint64_t, FakeLink::Expected>::iterator at, Result<size_t> outcome) {
    auto done = std::move(at->second.done);
    link().expected.erase(at);
    done(outcome);
  }
  void end_put(Status status) {
    auto done = std::move(link().put_done.front());
    link().put_done.pop_front();
    done(std::move(status));
  }
  /// An expected message arrives, or one of ours.
  void put(Input& in) {
    bool is_odd = in.byte() % 8 == 0;
    if (!link().put_done.empty()) end_put({});
    if (link().expected.empty()) return;
    auto at = link().expected.begin();
    std::advance(at, in.byte() % link().expected.size());
    Region to = at->second.to;
    size_t size = is_odd ? in.number() % (to.size + 1) : to.size;
    auto* data = static_cast<char*>(to.data);
    if (!encrypts_) {
      std::memset(data, 'x', size);
    } else if (size >= kBulkSealBytes) {
      std::memset(data, 'x', size - kBulkSealBytes);
      peer_.bulk()->seal(at->first, data, size - kBulkSealBytes);
    }
    end_expected(at, size);
  }

  const bool encrypts_;
  GangSeal peer_;
  FakeTransport transport_;
  std::unique_ptr<CommunicatorState> state_;
  std::shared_ptr<RankListener> listener_;
  std::list<Message> sent_, received_;
  int long_ = 0;
  uint64_t sent_count_[kChannelKinds] = {};
  std::unique_ptr<RankLinks> rank_links_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  Story story(in.byte() % 2 == 1);
  for (int steps = 0; !in.is_empty() && steps < 60; steps++) {
    story.play(in);
    story.check();
  }
  return 0;
}
