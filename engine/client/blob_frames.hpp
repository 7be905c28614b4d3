// Content in frames between a client on another machine and the writer, sealed as all that they
// say.
#pragma once
#include <functional>
#include <string>

#include "engine/client/connection.hpp"
#include "engine/cluster/transfer/blob_reader.hpp"
#include "flow/digest.hpp"

namespace flow {

/// Where it can't be read the other side is told why, and nothing more comes.
Status send_blob(EngineConnection& connection, const Digest& digest,
                 const Result<cluster::BlobReader>& source);
/// The next content that comes, which has to be this one: durable under objects/ of `dir` then.
/// `goes_on` is called before each piece; its error ends the transfer and is returned.
Status receive_blob(EngineConnection& connection, const Digest& digest, const std::string& dir,
                    const std::function<Status()>& goes_on = nullptr);

}  // namespace flow
