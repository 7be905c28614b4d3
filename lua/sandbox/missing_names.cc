// What to write in place of a name that a library does not have.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

namespace {

struct ForeignName {
  std::string_view library, name, advice;
};

// Names of PyTorch whose counterpart has another name. Others differ in case and underscores only.
constexpr ForeignName kForeignNames[] = {
    {"flow.nn", "Module", "write `flow.nn.class(\"Name\")` for a class of your own"},
    {"flow.nn", "functional",
     "its functions are methods of tensors, such as `x:relu()`, and losses are in flow.nn"},
    {"flow.nn", "Parameter", "here it is `parameter`"},
    {"flow.nn", "BCELoss", "here it is `bce_with_logits`, which takes logits"},
    {"flow.nn", "MultiheadAttention", "here it is `attention`"},
    {"flow.nn", "TransformerEncoderLayer", "here it is `transformer_block`"},
    {"flow.optim", "Adam", "here it is `adamw`, with `weight_decay = 0`"},
    {"flow.optim", "lr_scheduler", "its schedules are here, such as `flow.optim.cosine`"},
    {"flow.data", "DataLoader", "here it is `loader`"},
    {"flow", "utils", "its DataLoader is `flow.data.loader`"},
    {"flow", "Tensor", "here it is `tensor`"},
    {"flow", "manual_seed", "a task's random numbers follow from its key and its option `seed`"},
    {"flow", "save", "return the model's `:state()` as the task's result"},
    {"flow", "load", "take the state as the task's argument, and call `model:load(state)`"},
    {"flow", "concat", "here it is `cat`"},
    {"flow", "cuda", "a task with the option `gpus` computes on its GPU: write `x:to(\"cuda\")`"},
};

std::string squeezed(std::string_view name) {
  std::string letters;
  for (char c : name)
    if (c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

}  // namespace

std::string missing_name_hint(std::string_view library, std::string_view field,
                              const std::vector<std::string>& names) {
  for (const ForeignName& foreign : kForeignNames)
    if (foreign.library == library && foreign.name == field)
      return fmt::format(": {}", foreign.advice);
  std::string wanted = squeezed(field);
  for (const std::string& name : names)
    if (squeezed(name) == wanted || squeezed(name) + "loss" == wanted)
      return fmt::format(": here it is `{}`", name);
  std::string near = did_you_mean(field, names);
  return near.empty() ? did_you_mean(wanted, names) : near;
}

std::string foreign_global_hint(std::string_view name) {
  if (name == "torch" || name == "nn" || name == "optim")
    return "; PyTorch's names are in flow: `flow.nn`, `flow.optim`, `flow.zeros`, and methods of "
           "tensors; write `local flow = require \"flow\"`";
  return "";
}

}  // namespace flow::lua
