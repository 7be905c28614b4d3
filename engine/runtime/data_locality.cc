#include "engine/runtime/data_locality.hpp"

namespace flow {

std::vector<std::pair<core::HostId, uint64_t>> KnownInputs::of(const core::Run& run,
                                                               core::UnitId unit) const {
  const auto* contents = resolver_.inputs(run.units[unit].key);
  if (contents == nullptr) return {};
  if (hosts_.empty())
    for (size_t host = 0; host < state_.hosts.size(); host++)
      hosts_.emplace(state_.hosts[host].info.name, static_cast<core::HostId>(host));
  cluster::BlobDirectory::ByteCounts bytes = blob_directory_.bytes_of(*contents);
  std::vector<std::pair<core::HostId, uint64_t>> places{{core::HostId{0}, bytes.all}};
  for (const auto& [name, count] : bytes.at) {
    auto host = hosts_.find(name);
    if (host != hosts_.end()) places.emplace_back(host->second, count);
  }
  return places;
}

}  // namespace flow
