// A blob as messages between a client on another machine and the server: chunks of it, or an error
// of the side that sends.
//
// `Message` is what the sending side sends: ClientRequest (inputs of a run) or ServerReply (a
// result). Both functions block, and return an error when the other side is gone.
#pragma once
#include <functional>
#include <string>

#include "engine/client/connection.hpp"
#include "engine/cluster/transfer/blob_reader.hpp"
#include "flow/digest.hpp"

namespace flow {

/// Sends the blob in chunks. If it cannot be read, the other side gets the reason in place of the
/// next chunk, and this is the returned error.
template <typename Message>
Status send_blob(EngineConnection& connection, const Digest& digest,
                 const Result<cluster::BlobReader>& source);

/// Receives the next blob, which must be `digest`: afterwards it is durable under objects/ of
/// `dir`. After an error nothing of it is kept. Error if the other side sends no chunk for a
/// minute. `before_chunk` is called before each chunk; its error ends the transfer and is returned.
template <typename Message>
Status receive_blob(EngineConnection& connection, const Digest& digest, const std::string& dir,
                    const std::function<Status()>& before_chunk = nullptr);

}  // namespace flow
