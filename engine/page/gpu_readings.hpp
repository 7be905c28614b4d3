// What the driver measures of the GPUs of the page's machine.
#pragma once
#include <string>
#include <string_view>

namespace flow {

/// {"GPU-…":{"utilisation":PERCENT,"memory_used":BYTES,"memory":BYTES,"temperature":CELSIUS,"power":
/// WATTS}…}, by UUID; a value that the driver does not know is null. `table` is the output of
/// nvidia-smi as gpu_readings() asks for it; other lines are left out.
std::string gpu_readings_json(std::string_view table);

/// The same of this machine, by nvidia-smi. Without it, or if it does not answer within 5 s: {}.
/// Blocks.
std::string gpu_readings();

}  // namespace flow
