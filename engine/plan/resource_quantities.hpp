// Custom resources, named and counted: those of a machine and those that a task requests. A
// license, an FPGA, a share of a disk: the engine knows only the name and the number.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flow/result.hpp"

namespace flow {

using ResourceQuantities =
    std::vector<std::pair<std::string, int64_t>>;  // name to thousandths, sorted by name
constexpr size_t kCustomResourcesMax = 64;         // of a machine, or of a task
constexpr size_t kCustomResourceNameMax = 64;      // bytes
constexpr int64_t kResourceQuantityMaxMilli = 1'000'000'000'000;
constexpr const char* kCustomResourceNameForm =
    "a name of 1 to 64 letters, digits, `_`, `.` and `-`, which is not the name of an option";

/// Whether this is a valid name. `cpus`, `memory`, `gpus` and the like are not: tasks have options
/// with these names.
bool is_custom_resource_name(std::string_view name);
/// Whether the list is sorted, with distinct names and values above 0 within the bound.
bool are_sound(const ResourceQuantities& quantities);
/// Converts names and numbers; sorts. The error names the invalid entry.
Result<ResourceQuantities> quantities_of(const std::vector<std::pair<std::string, double>>& given);
/// The inverse of quantities_of.
std::vector<std::pair<std::string, double>> numbers_of(const ResourceQuantities& quantities);

/// The quantity of that name; 0 if there is none.
int64_t quantity_of(const ResourceQuantities& quantities, std::string_view name);
/// How often `requested` fits into `available`, at most `most` (which is the result if nothing is
/// asked).
int64_t how_many_fit(const ResourceQuantities& available, const ResourceQuantities& requested,
                     int64_t most);
inline bool fits(const ResourceQuantities& available, const ResourceQuantities& requested) {
  return how_many_fit(available, requested, 1) == 1;
}
/// available += sign * by, for the names in `available`.
void add(ResourceQuantities& available, const ResourceQuantities& by, int sign);
/// The element-wise minimum of two lists with the same names.
ResourceQuantities element_min(const ResourceQuantities& a, const ResourceQuantities& b);
/// The share of worker `number` (from 1) of `count`: whole units in turn; a fraction goes to the
/// first.
ResourceQuantities split(const ResourceQuantities& all, int32_t number, int32_t count);
/// As command-line arguments: "--resource", "fpga=2", …
std::vector<std::string> arguments_of(const ResourceQuantities& quantities);
/// "fpga = 2 and licence = 0.5"
std::string words_of(const ResourceQuantities& quantities);

}  // namespace flow
