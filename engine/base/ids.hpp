// Unique names: run ids, which sort by time; random names; the boot id.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

/// "20261121-051700-3fk3f9x": UTC to the second, then in base 36 two digits of milliseconds and
/// five that start at random and are counted up within a millisecond. Contains only [0-9a-z-].
/// `time_ms`: Unix time. Ids made by one process sort in the order they were made, unless the clock
/// is set back by 10 s or more; to keep the order, an id may have a later time than `time_ms`.
/// Thread-safe.
std::string make_run_id(int64_t time_ms);

/// Returns the Unix time in ms of a run's id. Requires is_run_id(id).
int64_t run_id_ms(std::string_view id);
/// Returns the characters with which all ids of this time begin.
std::string run_id_start(int64_t time_ms);

/// Whether `text` has the form of a run's id. Does not check the date.
bool is_run_id(std::string_view text);

/// A random name of `length` characters of [0-9a-z], from the kernel's random source.
std::string random_name(size_t length = 12);
/// A random number from the kernel's random source.
uint64_t random_u64();

/// The kernel's boot id, "" if /proc cannot be read. Recorded pids are valid only within the same
/// boot.
const std::string& boot_id();

}  // namespace flow
