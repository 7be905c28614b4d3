// The ranks on other nodes: links to them, made when they are needed, and lanes over those.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "transports/collective/gang_link.hpp"
#include "transports/collective/rank_channel.hpp"

namespace flow::collective {

/// A longer message goes as puts, which the other side expects first.
constexpr size_t kWholeBytes = size_t{128} << 10;
constexpr size_t kLinkChunkBytes = size_t{512} << 10;  // of one put
constexpr uint64_t kChunksAhead = 8;                   // of a message that are expected at a time
constexpr uint64_t kUnreadMax = 32;  // whole messages that the other side has not read

class LinkChannel;

/// Its user's lanes are idle, or dropped, when it ends.
class RankLinks final : public GangLinkUser {
 public:
  /// `addresses` by rank, empty for those of this node.
  RankLinks(CommunicatorState& state, std::shared_ptr<RankListener> listener,
            std::vector<std::string> addresses);
  ~RankLinks() override;

  // By whoever runs a call:

  /// To a rank of another node.
  RankChannel& channel(int rank, ChannelKind kind);
  /// The link, where it is up; the lower rank makes it. What goes wrong fails the core.
  std::shared_ptr<GangLink> link_to(int rank);
  void enter(const Signature& call);
  /// After a failure: waits until nothing of a user's memory is touched any more.
  void quiesce();
  /// One more put or expectation, whose callback calls the result at its end.
  std::function<void()> track_in_flight();

  // Of any thread:

  void send_failed(const Error& cause);
  void send_failed_to(int rank, const Error& cause);
  /// What the rank did last, as far as its frames tell.
  LastCall last_call_of(int rank) const;
  bool has_left(int rank) const;
  bool has_ended(int rank) const;
  void send_ended();
  WaitForEdge wait_edge_of(int rank) const;
  void send_wait_edge(const WaitForEdge& wait_edge);

  void on_proven(int rank) override;
  void on_frame(int rank, std::string_view frame, std::string_view bulk) override;
  void on_down(int rank, const Error& why) override;

 private:
  struct Peer {
    std::string address;
    std::atomic<bool> was_up{false}, has_left{false}, has_ended{false};
    std::atomic<uint64_t> last_call{0}, wait_edge{0};
    std::unique_ptr<LinkChannel> channels[kChannelKinds];  // null: on this node
  };

  /// The failure of a link that did not come up, or broke.
  Error link_failure(int rank, const Error& why) const;
  Status check_call(int rank, const Signature& theirs);
  void on_message(int rank, const FrameHead& head, std::string_view body);
  void send_all(const FrameHead& head);
  void send(int rank, const FrameHead& head);
  void on_failed(const FrameHead& head, std::string_view text);

  CommunicatorState& state_;
  const std::shared_ptr<RankListener> listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::shared_ptr<std::atomic<int>> in_flight_;  // puts and expectations

  mutable std::mutex mutex_;
  std::deque<Signature> entered_;        // this rank's newest collectives
  std::map<int, Signature> peer_calls_;  // others' newest
};

class LinkChannel final : public RankChannel {
 public:
  LinkChannel(CommunicatorState& state, RankLinks& rank_links, int peer, ChannelKind kind);
  void send(Transfer& transfer) override;
  void receive(Transfer& transfer) override;
  void step() override;
  bool is_idle() const override { return out_.empty() && in_.empty(); }
  void drop() override { out_.clear(), in_.clear(); }
  /// Of any thread.
  void enqueue(const FrameHead& head, std::string_view body);

 private:
  /// A piece that came sealed, in memory of its own until it is opened.
  struct SealedChunk {
    uint64_t number = 0;
    std::shared_ptr<const BulkSeal> seal;
    std::shared_ptr<char[]> data;
    size_t size = 0;
  };
  /// What of a message's pieces has come, or gone; callbacks count here.
  struct ChunkProgress {
    std::atomic<uint64_t> done{0};
    std::mutex mutex;
    std::vector<SealedChunk> sealed;  // whoever runs a call opens them
  };
  struct Outgoing {
    Transfer* transfer = nullptr;
    uint64_t sequence = 0, put = 0, ready_count = 0;
    bool is_announced = false;
    std::shared_ptr<ChunkProgress> progress;
  };
  struct Incoming {
    Transfer* transfer = nullptr;
    uint64_t sequence = 0, expected = 0, advertised = 0;
    bool is_announced = false;
    std::shared_ptr<ChunkProgress> progress;
  };
  struct ReceivedFrame {
    FrameHead head;
    std::string body;
  };

  void read_frames();
  bool match(const ReceivedFrame& frame);
  bool match_ready(const FrameHead& ready);
  bool match_message(const ReceivedFrame& frame);
  bool receive_whole(const Incoming& incoming, const ReceivedFrame& frame);
  void finish_chunks();
  void open_chunks(const Incoming& incoming);
  void post_receives(GangLink& link, Incoming& incoming);
  void post_receive(GangLink& link, const Incoming& incoming, uint64_t number);
  void receive_chunks(GangLink& link);
  void send_some(GangLink& link);
  bool send_one(GangLink& link, Outgoing& outgoing);
  void put_more(GangLink& link, Outgoing& outgoing);
  void put_chunk(GangLink& link, const Outgoing& outgoing, uint64_t number);
  FrameHead head_of(FrameKind kind, uint64_t sequence, uint64_t count) const;
  uint64_t tag_of(uint64_t sequence, uint64_t chunk) const;

  RankLinks& rank_links_;
  const ChannelKind kind_;
  std::deque<Outgoing> out_;
  std::deque<Incoming> in_;
  std::deque<ReceivedFrame> unmatched_;  // nobody receives them yet
  uint64_t next_out_ = 0, next_in_ = 0;
  uint64_t unread_ = 0, read_ = 0;  // whole messages: of the other side's, of this one's not told

  std::mutex mutex_;
  std::deque<ReceivedFrame> received_;
};

}  // namespace flow::collective
