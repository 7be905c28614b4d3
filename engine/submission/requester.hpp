// Who asks for an action on a run, as the journal records it: "ann@node1" for a process of the user
// ann on node1, "deploy@10.0.0.7 (page)" for a browser at that address.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace flow {

/// In bytes. Longer texts are cut.
constexpr size_t kRequesterMax = 256;

/// The user and the host of this process.
const std::string& own_requester();

/// A text from elsewhere as one line of well-formed UTF-8 of at most kRequesterMax bytes, without
/// control characters and marks that reorder text. Blanks at both ends are removed.
std::string clean_requester(std::string_view text);

}  // namespace flow
