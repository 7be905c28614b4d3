// Transfers the ranges or parts of one object over several connections.
#pragma once
#include <functional>

#include "engine/fetch/http_client.hpp"

namespace flow::fetch {

/// Transfers the piece with this index. `options` end the transfer when another one has failed.
using TransferPiece =
    std::function<Status(size_t index, HttpClient& client, const FetchOptions& options)>;

/// Calls `transfer` for each index below `count`, on up to FetchOptions::connections threads with a
/// client each, one of them the caller's. After an error no more pieces begin, and the running ones
/// end. Returns the first error.
Status transfer_pieces(size_t count, const FetchOptions& options, const TransferPiece& transfer);

}  // namespace flow::fetch
