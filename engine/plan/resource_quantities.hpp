// Resources by name, counted: what a machine has of them, and what a task asks for. A licence, an
// FPGA, a share of a disk: the engine knows the name and the number alone.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flow/result.hpp"

namespace flow {

using ResourceQuantities =
    std::vector<std::pair<std::string, int64_t>>;  // name to thousandths, by name
constexpr size_t kCustomResourcesMax = 64;         // of a machine, or of a task
constexpr size_t kCustomResourceNameMax = 64;      // bytes
constexpr int64_t kResourceQuantityMaxMilli = 1'000'000'000'000;
constexpr const char* kCustomResourceNameForm =
    "a name of 1 to 64 letters, digits, `_`, `.` and `-`, which is no option of its own";

/// Whether this can name one. `cpus`, `memory`, `gpus` and the like are none: tasks have options of
/// these names.
bool is_custom_resource_name(std::string_view name);
/// Sorted, each of a name of its own, above 0 and within the bound.
bool are_sound(const ResourceQuantities& quantities);
/// From names and numbers, sorted. The Error says which is wrong.
Result<ResourceQuantities> quantities_of(const std::vector<std::pair<std::string, double>>& given);
/// As numbers again.
std::vector<std::pair<std::string, double>> numbers_of(const ResourceQuantities& quantities);

/// 0 where there is none of that name.
int64_t quantity_of(const ResourceQuantities& quantities, std::string_view name);
/// How often `asked` goes into what is there, up to `most`, which it is where nothing is asked for.
int64_t how_many_fit(const ResourceQuantities& there, const ResourceQuantities& asked,
                     int64_t most);
inline bool fits(const ResourceQuantities& there, const ResourceQuantities& asked) {
  return how_many_fit(there, asked, 1) == 1;
}
/// there += sign * by, of the names that are there.
void add(ResourceQuantities& there, const ResourceQuantities& by, int sign);
/// Of two with the same names, the less of each.
ResourceQuantities element_min(const ResourceQuantities& a, const ResourceQuantities& b);
/// What the `number`-th of `count` gets, from 1: whole units in turn, and what is left of a unit
/// goes to the first.
ResourceQuantities split(const ResourceQuantities& all, int32_t number, int32_t count);
/// As command lines have it: "--resource", "fpga=2", …
std::vector<std::string> arguments_of(const ResourceQuantities& quantities);
/// "fpga = 2 and licence = 0.5"
std::string words_of(const ResourceQuantities& quantities);

}  // namespace flow
