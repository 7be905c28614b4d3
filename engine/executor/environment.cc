#include "engine/executor/environment.hpp"

#include <unistd.h>

#include <algorithm>

extern char** environ;

namespace flow {

namespace {

// A thread that walks an array finishes long before this many writes.
constexpr size_t kRetiredMax = 16;

bool sets_up_a_library(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"CUDA_", "NVIDIA_", "NCCL_",     "UCX_",
                                            "OMP_",  "FLOW_",   "OPENBLAS_", "MALLOC_"};
  return std::ranges::any_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); });
}

void point_environ(char** entries) { __atomic_store_n(&environ, entries, __ATOMIC_RELEASE); }

}  // namespace

ProcessEnvironment::ProcessEnvironment() : first_(environ) {
  for (char** entry = first_; entry != nullptr && *entry != nullptr; entry++) {
    std::string_view text = *entry;
    size_t equals = text.find('=');
    if (equals == std::string_view::npos || !sets_up_a_library(text.substr(0, equals))) continue;
    of_libraries_.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  if (auto slot = of_libraries_.find("FLOW_SLOT"); slot != of_libraries_.end())
    slot_ = slot->second;
}

void ProcessEnvironment::begin(const std::shared_ptr<const Variables>& of_run,
                               const Variables& own) {
  if (block_ == nullptr || of_run != of_run_ || own != own_) {
    Variables all = own;
    all.insert(of_run->begin(), of_run->end());
    all.insert(of_libraries_.begin(), of_libraries_.end());
    retire(std::exchange(block_, block_of(all, {})));
    of_run_ = of_run;
    own_ = own;
  }
  point_environ(block_->entries.data());
}

void ProcessEnvironment::show(const Variables& kept, const Variables& passing) {
  auto block = block_of(kept, passing);
  point_environ(block->entries.data());
  retire(std::exchange(shown_, std::move(block)));
}

void ProcessEnvironment::reset() { point_environ(first_); }

std::unique_ptr<ProcessEnvironment::Block> ProcessEnvironment::block_of(const Variables& kept,
                                                                        const Variables& passing) {
  auto block = std::make_unique<Block>();
  block->texts.reserve(passing.size());  // entries point into the texts
  for (const auto& [name, value] : passing) {
    block->texts.push_back(name + "=" + value);
    block->entries.push_back(block->texts.back().data());
  }
  for (const auto& [name, value] : kept) {
    if (passing.contains(name)) continue;
    const std::string& text = *kept_.insert(name + "=" + value).first;
    block->entries.push_back(const_cast<char*>(text.c_str()));
  }
  block->entries.push_back(nullptr);
  return block;
}

void ProcessEnvironment::retire(std::unique_ptr<Block> block) {
  if (block != nullptr) retired_.push_back(std::move(block));
  if (retired_.size() > kRetiredMax) retired_.pop_front();
}

ProcessEnvironment& process_environment() {
  static ProcessEnvironment environment;
  return environment;
}

}  // namespace flow
