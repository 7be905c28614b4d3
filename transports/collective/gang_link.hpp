// An authenticated link to a rank on another node: both ends have proven that they hold the gang's
// key, and their ranks. Its frames are sealed.
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

/// Events of a proven link, on its transport's thread.
class GangLinkUser {
 public:
  virtual ~GangLinkUser() = default;
  virtual void on_proven(int rank) = 0;
  /// `bulk`: data that was not sealed with the frame.
  virtual void on_frame(int rank, std::string_view frame, std::string_view bulk) = 0;
  virtual void on_down(int rank, const Error& why) = 0;
};

/// Thread-safe.
class GangLink final : public LinkHandler, public std::enable_shared_from_this<GangLink> {
 public:
  /// Called once an incoming rank is proven; false rejects it.
  using Admit = std::function<bool(int rank, const std::shared_ptr<GangLink>&)>;
  /// `peer`: the rank to connect to. Negative: the incoming peer names its rank.
  GangLink(const RankIdentity& identity, int peer, Admit admit);

  void attach(std::shared_ptr<Link> link);
  /// Delivers frames that are already received, then all later ones; none after null.
  void set_user(GangLinkUser* user);
  /// The link is proven and not down.
  bool is_up() const { return proven_link() != nullptr; }
  // On a link that is not up nothing is sent, and puts and receives fail.
  void send(std::string_view control, std::string_view bulk = {});
  void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done);
  void put(uint64_t tag, Region from, std::function<void(Status)> done);
  /// Of a proven link: the cipher for puts; null if they are not encrypted.
  std::shared_ptr<const BulkSeal> bulk_seal() const { return seal_.bulk(); }
  void close(int64_t flush_ms);
  bool has_gone_down() const;

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
  const Admit admit_;  // for incoming ranks
  GangSeal seal_;
  std::mutex seal_mutex_;  // frames are sent in the order in which they are sealed

  mutable std::mutex link_mutex_;  // guards the next three
  std::shared_ptr<Link> link_;
  bool is_proven_ = false, has_gone_down_ = false;

  std::mutex user_mutex_;  // guards the members below, held while the user is called
  GangLinkUser* user_ = nullptr;
  std::vector<std::pair<std::string, std::string>> early_;
  bool is_down_ = false;  // drops later frames
  Error why_;
};

/// Accepts links of other nodes' ranks, from before this rank knows their addresses. The caller of
/// open() calls close().
class RankListener : public std::enable_shared_from_this<RankListener> {
 public:
  RankListener(const RankIdentity& identity, Transport& transport)
      : identity_(identity), transport_(transport) {}

  Result<std::string> open(const std::string& address);  // returns the actual address
  /// Calls `user` from now on, also for links that are already proven.
  void set_user(GangLinkUser* user);
  /// The link to that rank, null if there is none yet.
  std::shared_ptr<GangLink> link_to(int rank) const;
  Status connect(int rank, const std::string& address);
  /// Waits up to `flush_ms` for frames that were sent before.
  void close(int64_t flush_ms);

 private:
  std::shared_ptr<GangLink> accept(std::shared_ptr<Link> link);
  bool admit(int rank, const std::shared_ptr<GangLink>& link);

  const RankIdentity identity_;
  Transport& transport_;
  mutable std::mutex mutex_;
  std::map<int, std::shared_ptr<GangLink>> links_;
  std::vector<std::weak_ptr<GangLink>> unproven_;
  GangLinkUser* user_ = nullptr;
  bool is_closed_ = false;
  std::unique_ptr<Listener> listener_;
};

}  // namespace flow::collective
