// The files of this folder are compiled once for each level of the x86-64 instruction set (and once
// plainly elsewhere), each time into a namespace of that level's name; `loops()` in
// kernels/cpu/loops.hpp gives those that this CPU runs best.
//
// A function that is compiled for a level and bears a name that other files use as well (a template
// of the standard library, an inline function) could be taken by the linker for all of them, and a
// lesser CPU would meet an instruction that it has not. So these files include nothing of the
// standard library but <cstdint> and type traits, call only functions of their own namespace and
// FLOW_HD ones (always inlined), and a test reads their symbols.
#pragma once

#ifndef FLOW_ISA
#error "FLOW_ISA is the namespace of the instruction set's level; CMake sets it"
#endif
