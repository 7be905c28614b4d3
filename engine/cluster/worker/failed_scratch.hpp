// Scratch folders of failed attempts on a worker.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace flow::cluster {

constexpr size_t kFailedScratchKept = 16;  // the newest ones, for inspection
constexpr uint64_t kFreeParts = 10;  // fewer are kept while less than 1/10 of the disk is free

/// Whether the disk has less free space than kept folders must leave.
bool is_disk_low(const std::string& path);

/// The unit and the attempt in the name of a scratch folder, "train.3@1" or "train.3.rank0@1".
std::optional<std::pair<uint32_t, uint32_t>> attempt_of_folder(const std::string& name);

/// Removes the oldest folders of attempts below `scratch` beyond those that may stay.
/// `is_in_use(run, name)`: an attempt may still use the folder, which is then kept. Returns whether
/// folders of ended attempts are left.
bool trim_failed_scratch(
    const std::string& scratch,
    const std::function<bool(const std::string& run, const std::string& name)>& is_in_use,
    size_t kept = kFailedScratchKept);

}  // namespace flow::cluster
