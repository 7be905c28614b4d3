// What failed attempts left in a worker's scratch folder.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace flow::cluster {

/// Of failed attempts so many folders stay, for people to look at,
constexpr size_t kLeftoversKept = 16;
/// and fewer where less than one in so many parts of the disk is free.
constexpr uint64_t kFreeParts = 10;

/// The unit and the attempt that a scratch folder is named for, "train.3@1" or "train.3.rank0@1".
std::optional<std::pair<uint32_t, uint32_t>> attempt_of_folder(const std::string& name);

/// Removes the oldest folders of attempts below `scratch` beyond what may stay. `is_in_use`, of a
/// run and a folder's name: an attempt there may still run. Its folder is not touched.
void trim_leftovers(
    const std::string& scratch,
    const std::function<bool(const std::string& run, const std::string& name)>& is_in_use,
    size_t kept = kLeftoversKept);

}  // namespace flow::cluster
