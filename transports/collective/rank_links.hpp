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
  void quiet();
  /// One more put or expectation, whose callback calls the result at its end.
  std::function<void()> fly();

  // Of any thread:

  void tell_failed(const Error& cause);
  /// What the rank did last, as far as its frames tell.
  LastCall last_call_of(int rank) const;
  bool has_left(int rank) const;
  bool has_ended(int rank) const;
  void tell_ended();
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
  Error no_link(int rank, const Error& why) const;
  Status check_call(int rank, const Signature& theirs);
  void on_message(int rank, const FrameHead& head, std::string_view body);
  void send_all(const FrameHead& head);
  void send(int rank, const FrameHead& head);
  void on_failed(const FrameHead& head, std::string_view text);

  CommunicatorState& state_;
  const std::shared_ptr<RankListener> listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::shared_ptr<std::atomic<int>> flying_;  // puts and expectations

  mutable std::mutex mutex_;
  std::deque<Signature> entered_;      // this rank's newest collectives
  std::map<int, Signature> foreseen_;  // others' newest
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
  void take(const FrameHead& head, std::string_view body);

 private:
  /// A piece that came sealed, in memory of its own until it is opened.
  struct SealedPiece {
    uint64_t number = 0;
    std::shared_ptr<const BulkSeal> seal;
    std::shared_ptr<char[]> data;
    size_t size = 0;
  };
  /// What of a message's pieces has come, or gone; callbacks count here.
  struct Progress {
    std::atomic<uint64_t> done{0};
    std::mutex mutex;
    std::vector<SealedPiece> sealed;  // whoever runs a call opens them
  };
  struct Outgoing {
    Transfer* transfer = nullptr;
    uint64_t sequence = 0, put = 0, ready = 0;
    bool is_announced = false;
    std::shared_ptr<Progress> progress;
  };
  struct Incoming {
    Transfer* transfer = nullptr;
    uint64_t sequence = 0, expected = 0, told = 0;
    bool is_announced = false;
    std::shared_ptr<Progress> progress;
  };
  struct Came {
    FrameHead head;
    std::string body;
  };

  void read_frames();
  bool match(const Came& came);
  bool match_ready(const FrameHead& ready);
  bool match_message(const Came& came);
  bool take_whole(const Incoming& incoming, const Came& came);
  void finish_pieces();
  void open_pieces(const Incoming& incoming);
  void expect_more(GangLink& link, Incoming& incoming);
  void expect_piece(GangLink& link, const Incoming& incoming, uint64_t number);
  void receive_pieces(GangLink& link);
  void send_some(GangLink& link);
  bool send_one(GangLink& link, Outgoing& outgoing);
  void put_more(GangLink& link, Outgoing& outgoing);
  void put_piece(GangLink& link, const Outgoing& outgoing, uint64_t number);
  FrameHead head_of(FrameKind kind, uint64_t sequence, uint64_t count) const;
  uint64_t tag_of(uint64_t sequence, uint64_t piece) const;

  RankLinks& rank_links_;
  const ChannelKind kind_;
  std::deque<Outgoing> out_;
  std::deque<Incoming> in_;
  std::deque<Came> unmatched_;  // nobody receives them yet
  uint64_t next_out_ = 0, next_in_ = 0;
  uint64_t unread_ = 0, read_ = 0;  // whole messages: of the other side's, of this one's not told

  std::mutex mutex_;
  std::deque<Came> came_;
};

}  // namespace flow::collective
