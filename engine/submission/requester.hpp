// Who asks for an action on a run, as the journal records it:
// - "ann@node1": a process of the user ann on node1;
// - "ann@node1 from 10.0.0.9": the same, by a head's client that connected from that address;
// - "deploy@10.0.0.7 (page)": a browser at that address that came by the link of the page;
// - "deploy@10.0.0.7 (page, key 3f2a9c1b)": a browser or program with the page's key
//   that has this fingerprint.
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

/// The requester of a client that connected from `host` and calls itself `claimed_name`; "":
/// unknown. A name other than printable ASCII without blanks and quotes is quoted, so that a client
/// cannot forge what follows the name. It is cut where the whole would be longer than
/// kRequesterMax.
std::string requester_from(std::string_view claimed_name, std::string_view host);

/// The requester `who` of an action of the page, for a browser at `address`. `key_fingerprint`: of
/// the key that the browser has; "": it has none.
std::string page_requester(std::string_view who, std::string_view address,
                           std::string_view key_fingerprint);

}  // namespace flow
