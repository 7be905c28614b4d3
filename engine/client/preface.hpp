// The first frame that each side of a connection sends: the version of its client protocol.
//
// The form of this frame is the same in all versions of the protocol, so that processes of
// different versions can still detect the difference. It is a canonical value, like all frames of
// version 1: a server of version 1 answers it with an error reply, and a client of version 1
// reads it as an error reply.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

constexpr uint32_t kClientProtocolVersion = 2;

/// The preface of this process. `peer_preface`, the first frame of the peer, lets the message for
/// a peer of another version name that version; empty: it is not known yet.
std::string encode_preface(std::string_view peer_preface = {});

/// Whether `frame`, the first of the peer, is the preface of this version. The error (environment)
/// names both versions and says what to do.
Status check_preface(std::string_view frame);

}  // namespace flow
