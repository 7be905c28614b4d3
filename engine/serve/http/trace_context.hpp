// The trace that a request belongs to, as its client says: https://www.w3.org/TR/trace-context/
#pragma once
#include <string_view>

namespace flow {

/// Whether the value of a `traceparent` field is valid, of this or a later version of the standard.
bool is_traceparent(std::string_view value);

/// The 32 hexadecimal digits in a valid value; "" for "".
std::string_view trace_id_of(std::string_view traceparent);

}  // namespace flow
