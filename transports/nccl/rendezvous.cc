#include <fmt/format.h>

#include <cstring>

#include "engine/crypto/base64.hpp"
#include "transports/nccl/communicator.hpp"

namespace flow {
namespace nccl {
namespace {

constexpr const char* kFormat = "flow-nccl 1";

/// Rank 0's address contains NCCL's id of the gang, which is a secret: a process that has it can
/// join.
class NcclRendezvous final : public Rendezvous {
 public:
  explicit NcclRendezvous(const NcclOptions& options) : options_(options) {}

  Status open() {
    address_ = prefix(options_.rank);
    if (options_.rank != 0) return {};
    UniqueId id{};
    Code code = library().calls.get_unique_id(&id);
    if (code != kSuccess) return nccl_error(library().calls, 0, code, "making the gang's id");
    address_ += base64_encode({id.bytes, sizeof id.bytes});
    return {};
  }
  const std::string& address() const override { return address_; }
  Result<std::unique_ptr<Communicator>> join(const std::vector<std::string>& addresses) override;

 private:
  std::string prefix(int rank) const {
    return fmt::format("{}\n{}\n{}\n", kFormat, rank, options_.ranks);
  }
  Result<UniqueId> read(const std::vector<std::string>& addresses) const;

  const NcclOptions options_;
  std::string address_;
};

Result<UniqueId> NcclRendezvous::read(const std::vector<std::string>& addresses) const {
  if (addresses.size() != static_cast<size_t>(options_.ranks))
    return environment_error(
        fmt::format("{} addresses for {} ranks", addresses.size(), options_.ranks));
  for (int rank = 0; rank < options_.ranks; rank++)
    if (!addresses[static_cast<size_t>(rank)].starts_with(prefix(rank)))
      return environment_error(
          fmt::format("the address of rank {} belongs to another rank, or to "
                      "another version of flow",
                      rank));
  std::string bytes;
  bool is_id = base64_decode(addresses[0].substr(prefix(0).size()), bytes);
  UniqueId id{};
  if (!is_id || bytes.size() != sizeof id.bytes)
    return environment_error("the address of rank 0 has no NCCL id");
  std::memcpy(id.bytes, bytes.data(), sizeof id.bytes);
  return id;
}

Result<std::unique_ptr<Communicator>> NcclRendezvous::join(
    const std::vector<std::string>& addresses) {
  auto id = read(addresses);
  if (!id.ok()) return id.error();
  FLOW_TRY(options_.stream->select());
  const NcclCalls& calls = library().calls;
  Config config = config_of(options_.gang.c_str());
  NcclHandle handle = nullptr;
  auto until = Clock::now() + std::chrono::milliseconds(options_.join_ms);
  Code code = calls.init_rank(&handle, options_.ranks, *id, options_.rank, &config);
  if ((code == kSuccess || code == kInProgress) && handle != nullptr)
    code = await_result(calls, handle, until, options_.stops);
  if (code == kSuccess) {
    NcclOptions joined = options_;
    joined.stops = nullptr;
    return std::unique_ptr<Communicator>(std::make_unique<NcclCommunicator>(joined, handle));
  }
  if (handle != nullptr) calls.abort(handle);
  if (code != kInProgress) return nccl_error(calls, options_.rank, code, "joining the gang");
  if (options_.stops && options_.stops())
    return Error{ErrorKind::interrupted, "joining the gang was canceled"};
  return environment_error(
      fmt::format("rank {}: NCCL has not joined the gang of {} ranks in {} ms: a "
                  "rank has not joined, or cannot be reached",
                  options_.rank, options_.ranks, options_.join_ms));
}

}  // namespace
}  // namespace nccl

Result<std::unique_ptr<Rendezvous>> make_nccl_rendezvous(const NcclOptions& options) {
  FLOW_TRY(check_rank(options.rank, options.ranks));
  auto version = nccl_version();
  if (!version.ok()) return version.error();
  auto made = std::make_unique<nccl::NcclRendezvous>(options);
  FLOW_TRY(made->open());
  return std::unique_ptr<Rendezvous>(std::move(made));
}

Result<std::unique_ptr<Communicator>> shrink_nccl(Communicator& communicator,
                                                  const std::vector<int>& without) {
  auto* ours = dynamic_cast<nccl::NcclCommunicator*>(&communicator);
  if (ours == nullptr) return user_error("only an NCCL communicator can continue with fewer ranks");
  return ours->shrink(without);
}

}  // namespace flow
