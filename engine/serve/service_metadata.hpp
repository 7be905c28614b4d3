// What a service says of its model, as JSON: metadata, configuration and the repository's index, in
// the forms of the Open Inference Protocol and of Triton's extensions to it.
// https://github.com/triton-inference-server/server/tree/main/docs/protocol
#pragma once
#include <string>
#include <string_view>

#include "engine/serve/service_options.hpp"

namespace flow {

/// The one version of a model.
constexpr std::string_view kModelVersion = "1";

/// Why a request to load or unload a model is refused.
constexpr std::string_view kNoModelLoad =
    "models are not loaded or unloaded by requests here: a run of flow serves its model until it "
    "ends";

std::string server_metadata();
std::string model_metadata(const ServiceOptions& service);
/// `max_batch_size` is above 0 if requests are joined to batches and every declared tensor has any
/// number of rows; then `dims` are without the rows.
std::string model_configuration(const ServiceOptions& service);
std::string repository_index(const ServiceOptions& service, bool is_ready);

}  // namespace flow
