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

using Amounts = std::vector<std::pair<std::string, int64_t>>;  // name to thousandths, by name
constexpr size_t kAmountsMax = 64;                             // of a machine, or of a task
constexpr size_t kAmountNameMax = 64;                          // bytes
constexpr int64_t kAmountMaxMilli = 1'000'000'000'000;
constexpr const char* kAmountNameForm =
    "a name of 1 to 64 letters, digits, `_`, `.` and `-`, which is no option of its own";

/// Whether this can name one. `cpus`, `memory`, `gpus` and the like are none: tasks have options of
/// these names.
bool is_amount_name(std::string_view name);
/// Sorted, each of a name of its own, above 0 and within the bound.
bool are_sound(const Amounts& amounts);
/// From names and numbers, sorted. The Error says which is wrong.
Result<Amounts> amounts_of(const std::vector<std::pair<std::string, double>>& given);
/// As numbers again.
std::vector<std::pair<std::string, double>> numbers_of(const Amounts& amounts);

/// 0 where there is none of that name.
int64_t amount_of(const Amounts& amounts, std::string_view name);
/// How often `asked` goes into what is there, up to `most`, which it is where nothing is asked for.
int64_t times_in(const Amounts& there, const Amounts& asked, int64_t most);
inline bool covers(const Amounts& there, const Amounts& asked) {
  return times_in(there, asked, 1) == 1;
}
/// there += sign * by, of the names that are there.
void change(Amounts& there, const Amounts& by, int sign);
/// Of two with the same names, the less of each.
Amounts least_of(const Amounts& a, const Amounts& b);
/// What the `number`-th of `count` gets, from 1: whole units in turn, and what is left of a unit
/// goes to the first.
Amounts share_of(const Amounts& all, int32_t number, int32_t count);
/// As command lines have it: "--resource", "fpga=2", …
std::vector<std::string> arguments_of(const Amounts& amounts);
/// "fpga = 2 and licence = 0.5"
std::string words_of(const Amounts& amounts);

}  // namespace flow
