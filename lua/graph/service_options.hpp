// Readers of the options that only services have, or that mean something else for services.
#pragma once
#include <string>
#include <vector>

#include "lua/graph/option_reader.hpp"

namespace flow::lua {

void read_port(const Option& option);
void read_listen(const Option& option);
void read_tls(const Option& option);
void read_keys(const Option& option);
void read_hosts(const Option& option);
void read_insecure(const Option& option);
void read_batch(const Option& option);
void read_inputs(const Option& option);
/// `outputs`, which a command has too, with another meaning.
void read_service_outputs(const Option& option);
/// `queue`, which is the name of a queue for other tasks.
void read_service_queue(const Option& option);

/// Raises if the service has options that exclude each other. `given` are the names of its options,
/// sorted.
void check_service_options(lua_State* L, const TaskDef& def, const std::vector<std::string>& given);

}  // namespace flow::lua
