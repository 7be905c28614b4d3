// Readers of the options that only services have, or that mean something else for services.
#pragma once
#include <string>
#include <vector>

#include "lua/graph/option_reader.hpp"

namespace flow::lua {

void read_port(const Option& option);
void read_listen(const Option& option);
void read_grpc(const Option& option);
void read_tls(const Option& option);
void read_keys(const Option& option);
void read_hosts(const Option& option);
void read_insecure(const Option& option);
void read_batch(const Option& option);
void read_replicas(const Option& option);
void read_idempotent(const Option& option);
void read_access_log(const Option& option);
void read_rollover(const Option& option);
void read_drain_delay(const Option& option);
void read_canary(const Option& option);
void read_warmup(const Option& option);
void read_ready(const Option& option);
void read_health(const Option& option);
void read_start_timeout(const Option& option);
void read_inputs(const Option& option);
/// `outputs`, which a command has too, with another meaning.
void read_service_outputs(const Option& option);
/// `queue`, which is the name of a queue for other tasks.
void read_service_queue(const Option& option);

/// The task that is the `gate` of the `canary` in the table of options; null if there is none.
const TaskObject* gate_of_options(lua_State* L, int index);

/// Raises if the service has options that exclude each other, and sets the defaults that depend on
/// others. `given` are the names of its options, sorted.
void check_service_options(lua_State* L, TaskDef& def, const std::vector<std::string>& given);

}  // namespace flow::lua
