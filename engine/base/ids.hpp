// Names that nobody else has: run ids that sort by time, and random words.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

/// "20261121-051700-3fk3f9x": UTC to the second, then milliseconds and a random part in base 36.
/// Ids made by one process sort in the order they were made. Only [0-9a-z-].
std::string make_run_id(int64_t time_ms);

/// Whether `text` has the form of a run's id.
bool is_run_id(std::string_view text);

/// `length` of [0-9a-z] from the kernel's random source.
std::string random_name(size_t length = 12);
uint64_t random_u64();

}  // namespace flow
