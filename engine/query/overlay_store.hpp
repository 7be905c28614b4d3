// A store that is read and keeps nothing: what is written is there until the process ends.
#pragma once
#include <memory>

#include "engine/store/store.hpp"

namespace flow {

/// Over `below`, which it borrows; null stands for an empty state.
std::unique_ptr<Store> make_overlay(const Store* below);

}  // namespace flow
