// Unique names: run ids, which sort by time; random names; the boot id.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

/// "20261121-051700-3fk3f9x": UTC to the second, then milliseconds and a random part in base 36.
/// Ids made by one process sort in the order they were made. Contains only [0-9a-z-].
std::string make_run_id(int64_t time_ms);

/// The time in a run's id, and the first characters of ids of that time.
int64_t run_id_ms(std::string_view id);
std::string run_id_start(int64_t time_ms);

/// Whether `text` has the form of a run's id.
bool is_run_id(std::string_view text);

/// A random name of `length` characters of [0-9a-z], from the kernel's random source.
std::string random_name(size_t length = 12);
uint64_t random_u64();

/// The machine's boot id. Recorded pids are valid only within the same boot.
const std::string& boot_id();

}  // namespace flow
