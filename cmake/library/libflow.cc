// The shared library libflow has no code of its own: CMake adds the objects.
