// Links to the ranks on other nodes, made when they are first needed, and the channels over them.
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

/// A longer message is transferred as puts, for which the receiver posts memory first.
constexpr size_t kWholeBytes = size_t{128} << 10;
constexpr size_t kLinkChunkBytes = size_t{512} << 10;  // of one put
constexpr uint64_t kChunksAhead = 8;  // chunks of a message with posted receives at a time
constexpr uint64_t kUnreadMax = 32;   // complete messages that the peer has not read

class LinkChannel;

/// Its users' channels are idle, or dropped, when it is destroyed.
class RankLinks final : public GangLinkUser {
 public:
  /// `addresses` by rank; empty for those of this node.
  RankLinks(CommunicatorState& state, std::shared_ptr<RankListener> listener,
            std::vector<std::string> addresses);
  ~RankLinks() override;

  // Called by the thread that executes calls:

  /// To a rank of another node.
  RankChannel& channel(int rank, ChannelKind kind);
  /// The link, if it is up; the lower rank makes it. Errors fail the communicator.
  std::shared_ptr<GangLink> link_to(int rank);
  void enter(const CallSignature& call);
  /// After a failure: waits until no memory of a user is accessed any more.
  void quiesce();
  /// Counts one more put or receive; its callback calls the result when it ends.
  std::function<void()> track_in_flight();

  // Any thread:

  void send_failed(const Error& cause);
  void send_failed_to(int rank, const Error& cause);
  /// The last call of the rank, according to its frames.
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

  /// The error of a link that did not connect, or broke.
  Error link_failure(int rank, const Error& why) const;
  Status check_call(int rank, const CallSignature& theirs);
  void on_message(int rank, const FrameHead& head, std::string_view body);
  void send_all(const FrameHead& head);
  void send(int rank, const FrameHead& head);
  void on_failed(const FrameHead& head, std::string_view text);

  CommunicatorState& state_;
  const std::shared_ptr<RankListener> listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::shared_ptr<std::atomic<int>> in_flight_;  // puts and posted receives

  mutable std::mutex mutex_;
  std::deque<CallSignature> entered_;        // this rank's newest collectives
  std::map<int, CallSignature> peer_calls_;  // newest calls of other ranks
};

class LinkChannel final : public RankChannel {
 public:
  LinkChannel(CommunicatorState& state, RankLinks& rank_links, int peer, ChannelKind kind);
  void send(Transfer& transfer) override;
  void receive(Transfer& transfer) override;
  void step() override;
  bool is_idle() const override { return out_.empty() && in_.empty(); }
  void drop() override { out_.clear(), in_.clear(); }
  /// Any thread.
  void enqueue(const FrameHead& head, std::string_view body);

 private:
  /// An encrypted chunk, in memory of its own until it is decrypted.
  struct SealedChunk {
    uint64_t number = 0;
    std::shared_ptr<const BulkSeal> seal;
    std::shared_ptr<char[]> data;
    size_t size = 0;
  };
  /// Chunks of a message that were received or sent; callbacks update it.
  struct ChunkProgress {
    std::atomic<uint64_t> done{0};
    std::mutex mutex;
    std::vector<SealedChunk> sealed;  // decrypted by the thread that executes calls
  };
  struct OutgoingMessage {
    Transfer* transfer = nullptr;
    uint64_t sequence = 0, put = 0, ready_count = 0;
    bool is_announced = false;
    std::shared_ptr<ChunkProgress> progress;
  };
  struct IncomingMessage {
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
  bool receive_whole(const IncomingMessage& incoming, const ReceivedFrame& frame);
  void finish_chunks();
  void open_chunks(const IncomingMessage& incoming);
  void post_receives(GangLink& link, IncomingMessage& incoming);
  void post_receive(GangLink& link, const IncomingMessage& incoming, uint64_t number);
  void receive_chunks(GangLink& link);
  void send_some(GangLink& link);
  bool send_one(GangLink& link, OutgoingMessage& outgoing);
  void put_more(GangLink& link, OutgoingMessage& outgoing);
  void put_chunk(GangLink& link, const OutgoingMessage& outgoing, uint64_t number);
  FrameHead head_of(FrameKind kind, uint64_t sequence, uint64_t count) const;
  uint64_t tag_of(uint64_t sequence, uint64_t chunk) const;

  RankLinks& rank_links_;
  const ChannelKind kind_;
  std::deque<OutgoingMessage> out_;
  std::deque<IncomingMessage> in_;
  std::deque<ReceivedFrame> unmatched_;  // no receive is posted for them yet
  uint64_t next_out_ = 0, next_in_ = 0;
  uint64_t unread_ = 0,
           read_ =
               0;  // complete messages: sent and not acknowledged; received and not acknowledged

  std::mutex mutex_;
  std::deque<ReceivedFrame> received_;
};

}  // namespace flow::collective
