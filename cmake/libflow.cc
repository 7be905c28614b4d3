// The shared library libflow has no code of its own: it is the archives that CMake puts into it.
