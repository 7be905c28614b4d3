// Attributes and file actions of posix_spawn, freed by the destructor.
#pragma once
#include <spawn.h>
#include <unistd.h>

#include <csignal>

namespace flow {

struct SpawnSetup {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  SpawnSetup() {
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  /// The child has its own process group, because Ctrl-C is for this process. No signal is blocked,
  /// and only the three descriptors that were set are inherited: libraries open sockets that a
  /// program would inherit.
  void isolate() {
    ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    sigset_t none;
    sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
};

}  // namespace flow
