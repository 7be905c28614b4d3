// The shared library libflow has no code of its own: it is the objects that CMake puts into it.
