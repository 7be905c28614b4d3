// How the ranks of a gang exchange addresses and become a communicator.
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/address.hpp"
#include "engine/base/ids.hpp"
#include "engine/process/process_stat.hpp"
#include "transports/collective/collective.hpp"
#include "transports/collective/communicator.hpp"
#include "transports/collective/rank_address.hpp"

namespace flow {
namespace collective {
namespace {

/// Start time of a process, in the system's ticks; empty if there is no such process.
std::string start_ticks_of(int pid) {
  auto stat = process_stat(pid);
  return stat ? std::to_string(stat->start_ticks) : "";
}

/// A text that is equal for two processes that can share memory.
std::string this_node() {
  struct stat pids {};
  ::stat("/proc/self/ns/pid", &pids);
  return fmt::format("{}/{}/{}", boot_id(), pids.st_ino, ::geteuid());
}

bool is_on_loopback(const std::string& address) {
  auto parsed = parse_address(address);
  return parsed.ok() && is_loopback(parsed->host);
}

Error wrong_address(int rank, const char* what) {
  return environment_error(fmt::format("the address of rank {} {}", rank, what));
}

class GangRendezvous final : public Rendezvous {
 public:
  GangRendezvous(const GangOptions& options, Segment segment)
      : options_(options), gang_(sha256(options.gang)), segment_(std::move(segment)) {}
  ~GangRendezvous() override {
    if (listener_) listener_->close(0);
  }

  Status open();
  const std::string& address() const override { return address_; }
  Result<std::unique_ptr<Communicator>> join(const std::vector<std::string>& addresses) override;

 private:
  Result<std::vector<RankAddress>> read(const std::vector<std::string>& addresses) const;
  Result<LocalRank> map(const RankAddress& peer);
  Status check_link(const RankAddress& peer) const;

  const GangOptions options_;
  const Digest gang_;
  Segment segment_;
  RankAddress own_;
  std::string address_;
  std::shared_ptr<RankListener> listener_;
};

Status GangRendezvous::open() {
  own_ = {options_.rank,
          options_.ranks,
          ::getpid(),
          segment_.descriptor(),
          start_ticks_of(::getpid()),
          options_.node.empty() ? this_node() : options_.node,
          ""};
  if (own_.node.find('\n') != std::string::npos) return user_error("a node's name is one line");
  if (options_.transport != nullptr && options_.ranks > 1) {
    if (options_.key.empty() && !is_on_loopback(options_.listen))
      return user_error(
          fmt::format("a gang without a key cannot listen at {}: any process could join "
                      "it. Only loopback is open to it",
                      options_.listen));
    listener_ = std::make_shared<RankListener>(
        RankIdentity{gang_, options_.key, options_.rank, options_.ranks, options_.encrypts},
        *options_.transport);
    auto listening = listener_->open(options_.listen);
    if (!listening.ok()) return listening.error();
    own_.link = *listening;
  }
  address_ = text_of(own_);
  return {};
}

Result<std::vector<RankAddress>> GangRendezvous::read(
    const std::vector<std::string>& addresses) const {
  if (addresses.size() != static_cast<size_t>(options_.ranks))
    return environment_error(
        fmt::format("{} addresses for {} ranks", addresses.size(), options_.ranks));
  std::vector<RankAddress> peers(addresses.size());
  for (int rank = 0; rank < options_.ranks; rank++) {
    RankAddress& peer = peers[static_cast<size_t>(rank)];
    if (!parse_rank_address(addresses[static_cast<size_t>(rank)], peer))
      return wrong_address(rank, "cannot be read: it is damaged or from another version of flow");
    if (peer.rank != rank || peer.ranks != options_.ranks)
      return wrong_address(rank, "belongs to another rank");
  }
  if (addresses[static_cast<size_t>(options_.rank)] != address_)
    return wrong_address(options_.rank, "is not the one that this rank published");
  return peers;
}

Status GangRendezvous::check_link(const RankAddress& peer) const {
  if (!listener_)
    return environment_error(
        fmt::format("rank {} is on another node, and this rank has no "
                    "transport to other nodes",
                    peer.rank));
  if (peer.link.empty()) return wrong_address(peer.rank, "has no address to connect to");
  if (options_.key.empty() && !is_on_loopback(peer.link))
    return wrong_address(peer.rank, "is beyond loopback, and the gang has no key");
  return {};
}

Result<LocalRank> GangRendezvous::map(const RankAddress& peer) {
  LocalRank local_rank;
  local_rank.rank = peer.rank;
  local_rank.pid = peer.pid;
  if (peer.rank == options_.rank) {
    local_rank.segment = std::move(segment_);
    return local_rank;
  }
  if (peer.pid != ::getpid()) local_rank.exit = ProcessExit(peer.pid);
  if (start_ticks_of(peer.pid) != peer.started)
    return environment_error(
        fmt::format("rank {}: its process {} has ended before it joined", peer.rank, peer.pid));
  auto segment = Segment::open(peer.pid, peer.descriptor, gang_, peer.rank, options_.ranks);
  if (!segment.ok()) return segment.error();
  local_rank.segment = std::move(*segment);
  return local_rank;
}

Result<std::unique_ptr<Communicator>> GangRendezvous::join(
    const std::vector<std::string>& addresses) {
  auto peers = read(addresses);
  if (!peers.ok()) return peers.error();
  std::vector<std::string> nodes, links;
  std::vector<LocalRank> local_ranks;
  Status mapped;
  for (const RankAddress& peer : *peers) {
    bool is_here = peer.node == own_.node;
    nodes.push_back(peer.node);
    links.push_back(is_here ? "" : peer.link);
    if (!is_here) FLOW_TRY(check_link(peer));
  }
  for (const RankAddress& peer : *peers) {
    if (peer.node != own_.node) continue;
    auto local_rank = map(peer);
    if (local_rank.ok())
      local_ranks.push_back(std::move(*local_rank));
    else
      mapped = local_rank.error();
  }
  Topology topology(nodes);
  auto state = std::make_unique<CommunicatorState>(
      CommunicatorOptions{options_.rank, options_.ranks, options_.deadline_ms},
      std::move(local_ranks));
  if (!mapped.ok()) state->fail(mapped.error());
  if (!state->join(options_.join_ms)) return state->cause();
  std::unique_ptr<RankLinks> rank_links;
  if (!topology.is_one_node())
    rank_links = std::make_unique<RankLinks>(*state, listener_, std::move(links));
  else if (listener_)
    listener_->close(0);
  listener_.reset();
  std::vector<int> leaders = topology.leaders();
  bool is_leader = std::find(leaders.begin(), leaders.end(), options_.rank) != leaders.end();
  if (rank_links && is_leader && options_.connects_at_once) {
    for (int leader : leaders)
      if (leader > options_.rank) (void)rank_links->link_to(leader);
  }
  return std::unique_ptr<Communicator>(std::make_unique<GangCommunicator>(
      CommunicatorParts{std::move(state), std::move(rank_links), std::move(topology)}));
}

}  // namespace
}  // namespace collective

Result<std::unique_ptr<Rendezvous>> make_rendezvous(const GangOptions& options) {
  FLOW_TRY(check_rank(options.rank, options.ranks));
  auto segment = collective::Segment::make(sha256(options.gang), options.rank, options.ranks);
  if (!segment.ok()) return segment.error();
  auto made = std::make_unique<collective::GangRendezvous>(options, std::move(*segment));
  FLOW_TRY(made->open());
  return std::unique_ptr<Rendezvous>(std::move(made));
}

}  // namespace flow
