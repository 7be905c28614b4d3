// A link to a rank on another node, proven: both ends hold the gang's key, and say who they are.
// What they say is sealed.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "flow/transport.hpp"
#include "transports/collective/gang_seal.hpp"

namespace flow::collective {

/// What a proven link tells, on its transport's thread.
class GangLinkUser {
 public:
  virtual ~GangLinkUser() = default;
  virtual void on_proven(int rank) = 0;
  /// `bulk`: data that was not sealed with it.
  virtual void on_frame(int rank, std::string_view frame, std::string_view bulk) = 0;
  virtual void on_down(int rank, const Error& why) = 0;
};

/// Thread-safe.
class GangLink final : public LinkHandler, public std::enable_shared_from_this<GangLink> {
 public:
  /// Asked once the rank that came in is proven; false refuses it.
  using Admit = std::function<bool(int rank, const std::shared_ptr<GangLink>&)>;
  /// `peer`: whom this side connects to. Negative: who comes in says it.
  GangLink(const Identity& identity, int peer, Admit admit);

  void attach(std::shared_ptr<Link> link);
  /// What came until now is told at once, all else when it comes; nothing after null.
  void set_user(GangLinkUser* user);
  /// It is proven, and not down.
  bool is_up() const { return proven_link() != nullptr; }
  // Of a link that is not up nothing is sent, and what is to be put or expected fails.
  void send(std::string_view control, std::string_view bulk = {});
  void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done);
  void put(uint64_t tag, Region from, std::function<void(Status)> done);
  /// Of a proven link: what seals puts; null where they go as they are.
  std::shared_ptr<const BulkSeal> bulk_seal() const { return seal_.bulk(); }
  void close(int64_t flush_ms);
  bool is_gone() const;

  void on_frame(std::string_view frame) override;
  void on_down(const Error& why) override;

 private:
  void on_hello(std::string_view frame);
  void on_proof(std::string_view frame);
  void on_sealed(std::string_view frame);
  void reject(const Error& why);
  std::shared_ptr<Link> any_link() const;
  std::shared_ptr<Link> proven_link() const;
  void send_frame(std::string frame);

  const bool connects_;
  const Admit admit_;  // of who comes in
  GangSeal seal_;
  std::mutex seal_mutex_;  // what is sealed first is sent first

  mutable std::mutex link_mutex_;  // of the next three
  std::shared_ptr<Link> link_;
  bool is_proven_ = false, is_gone_ = false;

  std::mutex user_mutex_;  // of what follows, while the user is told
  GangLinkUser* user_ = nullptr;
  std::vector<std::pair<std::string, std::string>> early_;
  bool is_down_ = false;  // nothing more is taken
  Error why_;
};

/// Where the links of other nodes' ranks come in, from before this rank knows theirs. Whoever opens
/// it closes it.
class RankListener : public std::enable_shared_from_this<RankListener> {
 public:
  RankListener(const Identity& identity, Transport& transport)
      : identity_(identity), transport_(transport) {}

  Result<std::string> open(const std::string& address);  // which it got
  /// From now on `user` is told; whoever has come in already is told of now.
  void set_user(GangLinkUser* user);
  /// The link to that rank, null where there is none yet.
  std::shared_ptr<GangLink> link_to(int rank) const;
  Status connect(int rank, const std::string& address);
  /// What was sent before goes first, for up to `flush_ms`, which this waits for.
  void close(int64_t flush_ms);

 private:
  std::shared_ptr<GangLink> accept(std::shared_ptr<Link> link);
  bool admit(int rank, const std::shared_ptr<GangLink>& link);

  const Identity identity_;
  Transport& transport_;
  mutable std::mutex mutex_;
  std::map<int, std::shared_ptr<GangLink>> links_;
  std::vector<std::weak_ptr<GangLink>> unproven_;
  GangLinkUser* user_ = nullptr;
  bool is_closed_ = false;
  std::unique_ptr<Listener> listener_;
};

}  // namespace flow::collective
